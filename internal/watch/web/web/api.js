// Speaks with the server. The token is asked for once and kept as long as the tab.

const KEY = "premix-watch-token";

// ask is set by the shell: it shows the prompt and resolves when there is a token.
let ask = async () => {};
let asking = null;
export function onToken(f) { ask = f; }

function headers() {
  const token = sessionStorage.getItem(KEY);
  return token ? { Authorization: "Bearer " + token } : {};
}

export function setToken(token) {
  if (token) sessionStorage.setItem(KEY, token);
  else sessionStorage.removeItem(KEY);
}

// takeToken takes the token out of the address http://.../#token=TOKEN, which premix watch
// prints, and out of the browser's history. A fragment is not sent to any server.
export function takeToken() {
  const [, token] = location.hash.match(/^#token=([^&]+)$/) ?? [];
  if (!token) return;
  setToken(decodeURIComponent(token));
  history.replaceState(null, "", location.pathname + location.search);
}

export class ApiError extends Error {
  constructor(status, message, hint) {
    super(message);
    this.status = status;
    this.hint = hint;
  }
}

async function request(path, parameters, signal) {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(parameters ?? {})) {
    for (const v of [value].flat()) if (v !== undefined && v !== null && v !== "") query.append(key, v);
  }
  const url = "api/v1/" + path + (query.size ? "?" + query : "");
  for (let wrong = false; ; wrong = true) {
    let response;
    const used = sessionStorage.getItem(KEY);
    try {
      response = await fetch(url, { headers: headers(), signal, cache: "no-store" });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiError(0, "premix watch does not answer.", "Is it still running on its machine?");
    }
    if (response.status === 401) {
      // Many requests may find out at the same time: one prompt is for all.
      if (sessionStorage.getItem(KEY) === used) {
        asking ??= ask(wrong || used !== null).finally(() => { asking = null; });
      }
      await asking;
      continue;
    }
    if (!response.ok) {
      let message = `The server answered ${response.status}.`, hint;
      try {
        const body = await response.json();
        message = body.error ?? message;
        hint = body.hint;
      } catch { /* not from premix: the status has to do */ }
      throw new ApiError(response.status, message, hint);
    }
    return response;
  }
}

// get returns an answer's JSON.
export async function get(path, parameters, signal) {
  return (await request(path, parameters, signal)).json();
}

// live calls on(event, data) for what is sent as it happens, samples of these names among
// it, and comes back after a cut until the signal is aborted. EventSource can't send a token, so the stream is read here.
export async function live(names, on, signal) {
  for (let wait = 1000; !signal.aborted; wait = Math.min(wait * 2, 15000)) {
    try {
      const response = await request("live", { name: names }, signal);
      on("open");
      wait = 1000;
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        text += value;
        const parts = text.split(/\r?\n\r?\n/);
        text = parts.pop();
        for (const part of parts) {
          let event = "message", data = "";
          for (const line of part.split(/\r?\n/)) {
            if (line.startsWith("event:")) event = line.slice(6).trim();
            else if (line.startsWith("data:")) data += line.slice(5).trim();
          }
          if (data) on(event, JSON.parse(data));
        }
      }
    } catch (error) {
      if (signal.aborted) return;
      on("cut", error);
    }
    await new Promise((resolve) => setTimeout(resolve, wait));
  }
}
