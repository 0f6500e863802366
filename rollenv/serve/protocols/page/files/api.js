// What the server is asked, and the token that goes with it.

const KEY = "rollenv.token";
const stored = () => { try { return sessionStorage.getItem(KEY) || ""; } catch { return ""; } };
let token = stored();

export const hasToken = () => token !== "";

export function setToken(text) {
  token = text.trim();
  try { token ? sessionStorage.setItem(KEY, token) : sessionStorage.removeItem(KEY); } catch { /* it lasts as long as the page */ }
}

// An answer that is an error. kind and how are those of rollenv's errors.
export class Refused extends Error {
  constructor(status, {detail = "", kind = "", how = ""}, after = 0) {
    super(detail || `The server answered with status ${status}.`);
    Object.assign(this, {status, kind, how, after});
  }
}

const pause = seconds => new Promise(done => setTimeout(done, 1000 * seconds));

async function send(name, body, {signal, keepalive = false} = {}, patience = 2) {
  const headers = {"Content-Type": "application/json"};
  if (/^[\x21-\x7e]+$/.test(token)) headers.Authorization = `Bearer ${token}`;
  let response;
  try {
    response = await fetch(new URL(`api/${name}`, import.meta.url), {method: "POST", headers, body: JSON.stringify(body), signal, keepalive,
                                                 credentials: "omit", cache: "no-store", redirect: "error"});
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, {detail: "The server cannot be reached.", kind: "unreachable"});
  }
  if (response.ok) return response;
  if (response.status === 429 && patience && !keepalive) {  // nothing was done, so it can be asked again
    await pause(Math.min(5, +response.headers.get("Retry-After") || 1));
    return send(name, body, {signal, keepalive}, patience - 1);
  }
  const text = await response.text();
  let problem = {detail: text.slice(0, 2000)};
  try { problem = JSON.parse(text); } catch { /* it is text */ }
  throw new Refused(response.status, problem, +response.headers.get("Retry-After") || 0);
}

export async function ask(name, body = {}, options = {}) {
  return (await send(name, body, options)).json();
}

// The lines of an answer, each as it arrives.
export async function* lines(name, body, options) {
  const reader = (await send(name, body, options)).body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const {value, done} = await reader.read();
    if (done) break;
    const parts = (rest + value).split("\n");
    rest = parts.pop();
    for (const part of parts) yield JSON.parse(part);
  }
  if (rest) throw new Refused(0, {detail: "The answer of the server was cut off.", kind: "unreachable"});
}

// A name for a session that nobody guesses. The page chooses it so that it can end a session that is still being opened.
export const newName = () => Array.from(crypto.getRandomValues(new Uint8Array(18)), byte => byte.toString(16).padStart(2, "0")).join("");
