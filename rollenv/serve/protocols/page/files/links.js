// Addresses within the page. Whatever they hold is text from elsewhere: it is shown as text and sent to the server, which
// checks it.

export const LONGEST = 1_500_000;

const decoded = text => { try { return decodeURIComponent(text); } catch { return text; } };

// {page, rest, query} of a fragment.
export function routeOf(fragment) {
  const text = fragment.replace(/^#/, "").slice(0, LONGEST), at = text.indexOf("?");
  const path = (at < 0 ? text : text.slice(0, at)).replace(/^\//, ""), slash = path.indexOf("/");
  return {page: slash < 0 ? path : path.slice(0, slash), rest: slash < 0 ? "" : decoded(path.slice(slash + 1)),
          query: new URLSearchParams(at < 0 ? "" : text.slice(at + 1)), cut: fragment.length > LONGEST};
}

export const envLink = env => `#/env/${encodeURIComponent(env)}`;

// A mapping as JSON, or {}; null if the text is neither.
export function mapping(text) {
  if (!text || !text.trim()) return {};
  try {
    const value = JSON.parse(text);
    return value && typeof value === "object" && !Array.isArray(value) ? value : null;
  } catch { return null; }
}

const withMappings = (query, {kwargs, options}) => {
  for (const [name, value] of Object.entries({kwargs, options}))
    if (value && Object.keys(value).length) query.set(name, JSON.stringify(value));
  return query;
};

export function playLink(env, {seed = "", kwargs = {}, options = {}} = {}) {
  const query = withMappings(new URLSearchParams(seed === "" ? {} : {seed}), {kwargs, options}).toString();
  return `#/play/${encodeURIComponent(env)}${query ? `?${query}` : ""}`;
}

export function replayLink({env, seed, kwargs, options, actions, agent}) {
  const query = withMappings(new URLSearchParams({env, seed}), {kwargs, options});
  if (agent) query.set("agent", agent);
  for (const action of actions || []) query.append("a", action);
  return `#/replay?${query}`;
}

// The episode of a replay link; its texts are as they came. Null if the link names none.
export function episodeOf(query) {
  if (!query.has("env") || !query.has("seed")) return null;
  const kwargs = mapping(query.get("kwargs")), options = mapping(query.get("options"));
  const episode = {env: query.get("env"), seed: query.get("seed"), kwargs: kwargs || {}, options: options || {}};
  episode.damaged = kwargs === null || options === null;
  if (query.has("agent")) episode.agent = query.get("agent");
  else episode.actions = query.getAll("a");
  return episode;
}

export const whole = fragment => location.origin + location.pathname + fragment;
