// Requests to the server: with the token of the page's address, retried while the server is away or busy.

const token = new URLSearchParams(location.search).get("token") ?? "";
const listeners = new Set();
let online = true;

/** Call back when the connection is lost or found again. */
export const onConnection = (listener) => listeners.add(listener);

function report(now, text) {
  if (now === online && now) return;
  online = now;
  for (const listener of listeners) listener(now, text);
}

export class ServerError extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

const pause = (ms) => new Promise((done) => setTimeout(done, ms));

async function request(method, path, body, patient) {
  for (let attempt = 0; ; attempt++) {
    let response;
    try {
      response = await fetch(path, {
        method,
        headers: { authorization: `Bearer ${token}`, ...(body === undefined ? {} : { "content-type": "application/json" }) },
        body: body === undefined ? undefined : JSON.stringify(body),
        redirect: "error",
      });
    } catch {
      report(false, "The server does not answer. Your work stays on this page; it continues when the server is back.");
      if (!patient) throw new ServerError(0, "the server does not answer");
      await pause(Math.min(300 * 2 ** attempt, 3000));
      continue;
    }
    if (response.status === 401) {
      report(false, "The server was started again with another token. Open the address that it printed.");
      throw new ServerError(401, "wrong token");
    }
    report(true);
    if (response.status === 503) {
      await pause(Math.min(100 * 2 ** attempt, 2000));
      continue;
    }
    if (!response.ok) {
      let text = `error ${response.status}`;
      try {
        text = (await response.json()).error;
      } catch {
        // no JSON: the status must do
      }
      throw new ServerError(response.status, text);
    }
    return response;
  }
}

export const get = async (path) => (await request("GET", path, undefined, true)).json();
export const post = async (path, body) => {
  const response = await request("POST", path, body, true);
  const data = await response.json();
  data.milliseconds = Number(/model;dur=([\d.]+)/.exec(response.headers.get("server-timing") ?? "")?.[1] ?? NaN);
  return data;
};
export const blob = async (path, body) => (await request(body === undefined ? "GET" : "POST", path, body, true)).blob();

/** Fetch a photo, with the token, for the page to show; null for none. */
export const photoUrl = async (id) => (id ? URL.createObjectURL(await blob(`/api/photo/${id}`)) : null);

/** Latest wins: one request at a time is under way, and of those that wait only the newest is sent. */
export function latest(send) {
  let busy = false;
  let waiting = null;
  return async function run(...args) {
    if (busy) {
      waiting = args;
      return;
    }
    busy = true;
    try {
      await send(...args);
    } finally {
      busy = false;
      if (waiting) {
        const next = waiting;
        waiting = null;
        run(...next);
      }
    }
  };
}

export const base64 = (file) =>
  new Promise((done, fail) => {
    const reader = new FileReader();
    reader.onload = () => done(String(reader.result).replace(/^[^,]*,/, ""));
    reader.onerror = () => fail(new ServerError(0, "the file cannot be read"));
    reader.readAsDataURL(file);
  });
