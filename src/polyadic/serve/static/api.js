// Requests to the server: with the token of the page's address, retried while the server is away or busy.

let token = new URLSearchParams(location.search).get("token") ?? "";
let renewal = null; // {promise, done}: requests wait for a new token
const listeners = new Set();
let online = true;

/** Take the token of an address that the server printed; false if the text has none. Requests that waited continue. */
export function useAddress(text) {
  const found = /(?:token=)?([\w-]{16,})\s*$/.exec(text);
  if (!found) return false;
  token = found[1];
  history.replaceState(null, "", `${location.pathname}?token=${token}`);
  renewal?.done();
  renewal = null;
  return true;
}

function renewed() {
  if (!renewal) {
    renewal = {};
    renewal.promise = new Promise((done) => (renewal.done = done));
  }
  return renewal.promise;
}

/** Call back when the connection is lost (why, and whether a new token is needed) or found again. */
export const onConnection = (listener) => listeners.add(listener);

function report(now, text = "", refused = false) {
  if (now === online && now) return;
  online = now;
  for (const listener of listeners) listener(now, text, refused);
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
      report(false, "The server was started again and has another token. Your work is still on this page.", true);
      await renewed();
      attempt = 0;
      continue;
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
