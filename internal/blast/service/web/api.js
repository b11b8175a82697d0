// The REST interface of the service; see openapi.json.

export class Refused extends Error {
  constructor(status, message, after) {
    super(message);
    this.status = status;
    this.after = after;
  }
}

let token = sessionStorage.getItem("token") ?? "";

export function setToken(value) {
  token = value;
  sessionStorage.setItem("token", value);
}

async function ask(path, init = {}) {
  const headers = { ...init.headers };
  if (token) headers.Authorization = `Bearer ${token}`;
  const answer = await fetch(path, { ...init, headers });
  if (answer.ok) return answer;
  let message = answer.statusText;
  try {
    message = (await answer.json()).error ?? message;
  } catch { /* somebody between has answered */ }
  throw new Refused(answer.status, message, Number(answer.headers.get("Retry-After") ?? 0));
}

const json = async (answer) => (await answer).json();

export const databases = () => json(ask("api/v1/databases"));
export const search = (id, wait, signal) => json(ask(`api/v1/searches/${id}?wait=${wait}`, { signal }));
export const remove = (id) => ask(`api/v1/searches/${id}`, { method: "DELETE" });
export const submit = (request) => json(ask("api/v1/searches", {
  method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(request),
}));

// result waits for a result in a format for as long as it takes.
export async function result(id, format, signal) {
  for (;;) {
    const answer = await ask(`api/v1/searches/${id}/result?format=${format}&wait=20`, { signal });
    if (answer.status === 200) return answer;
  }
}
