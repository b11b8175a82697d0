"""Searches a database of premix blast serve, and writes its result to a file.

    premix_blast.py PROGRAM DATABASE QUERY FORMAT RESULT [OPTION=VALUE]...

OPTION is the name of an option of BLAST+. The environment has PREMIX_BLAST_URL, the
address of the service (default: http://127.0.0.1:8080), and PREMIX_BLAST_TOKEN, a token
for it. It needs Python alone.
"""

import json
import os
import sys
import time
import urllib.error
import urllib.request

WAIT = 20  # seconds that a request for a result waits at the service


def ask(path, body=None):
    """Returns the status, the headers and the body of an answer of the service."""
    url = os.environ.get("PREMIX_BLAST_URL", "http://127.0.0.1:8080").rstrip("/")
    request = urllib.request.Request(url + path, data=body)
    if body is not None:
        request.add_header("Content-Type", "application/json")
    token = os.environ.get("PREMIX_BLAST_TOKEN")
    if token:
        request.add_header("Authorization", "Bearer " + token)
    try:
        with urllib.request.urlopen(request, timeout=WAIT + 60) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read()
    except urllib.error.URLError as error:
        sys.exit("error: %s does not answer: %s\nhint: the administrator of Galaxy sets PREMIX_BLAST_URL" % (url, error.reason))


def fail(body):
    """Ends with the message of the service."""
    try:
        message = json.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        message = body.decode(errors="replace")
    sys.exit("error: " + message)


def submit(search):
    """Returns the id of a search that the service has taken on. It waits while too many wait."""
    body = json.dumps(search).encode()
    while True:
        status, headers, answer = ask("/api/v1/searches", body)
        if status == 202:
            return json.loads(answer)["id"]
        if status not in (429, 503):
            fail(answer)
        time.sleep(min(60, int(headers.get("Retry-After") or 5)))


def result(search):
    """Returns the result of a search, when it is there."""
    while True:
        status, headers, answer = ask("/api/v1/searches/%s/result?wait=%d" % (search, WAIT))
        if status == 200:
            return answer
        if status not in (202, 429, 503):
            fail(answer)
        if status != 202:
            time.sleep(min(60, int(headers.get("Retry-After") or 5)))


def main(program, database, query, form, to, *options):
    with open(query) as file:
        sequences = file.read()
    search = {"program": program, "database": database, "query": sequences, "format": form,
              "options": dict(o.split("=", 1) for o in options)}
    found = result(submit(search))
    with open(to, "wb") as file:
        file.write(found)


if __name__ == "__main__":
    if len(sys.argv) < 6:
        sys.exit(__doc__)
    main(*sys.argv[1:])
