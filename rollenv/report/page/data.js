// The index of all episodes, and the shards with their turns.

const data = JSON.parse(document.getElementById("data").textContent);
const index = data.index, columns = index.columns, total = columns.run.length;
const several = data.runs.length > 1;
const envs = new Set(index.tasks.map(task => task.env));
const isTraining = data.runs.some(run => run.kind === "training");

const status = row => index.statuses[columns.status[row]];
const statusText = row => {
  const kind = index.kinds[columns.kind[row]];
  return kind ? `${status(row)}: ${kind}` : status(row);
};
const taskName = task => {
  const {env, seed, index: place} = index.tasks[task];
  const name = place === null ? `seed ${seed}` : `task ${place}`;
  return envs.size > 1 ? `${env} ${name}` : name;
};
// Tasks in their own order, whatever order they were played in.
const taskRank = index.tasks.map((task, number) => [task.env, task.index ?? -1, task.seed, number])
  .sort((a, b) => a[0] < b[0] ? -1 : a[0] > b[0] ? 1 : a[1] - b[1] || a[2] - b[2] || a[3] - b[3])
  .reduce((ranks, [, , , number], rank) => { ranks[number] = rank; return ranks; }, new Array(index.tasks.length));
const repeated = columns.member.some(member => member > 0);
const episodeName = row => [
  taskName(columns.task[row]),
  data.runs[columns.run[row]].members[columns.member[row]] ?? (repeated ? `episode ${columns.member[row] + 1}` : ""),
  columns.iteration[row] >= 0 ? `${columns.part[row] ? "update" : "iteration"} ${columns.iteration[row]}` : "",
].filter(Boolean).join(", ");

// Rows of the last iteration of each run: what a training run came to, and all of an evaluation.
const lastIteration = new Map(), partOf = row => `${columns.run[row]} ${columns.part[row]}`;
for (let row = 0; row < total; row++)
  lastIteration.set(partOf(row), Math.max(lastIteration.get(partOf(row)) ?? -1, columns.iteration[row]));
const isLast = row => columns.iteration[row] === lastIteration.get(partOf(row));

// Addresses of episodes: the run where there are several, the iteration, whether of its update, and the number among those.
const addresses = [], rowsByAddress = new Map(), numbered = new Map();
for (let row = 0; row < total; row++) {
  const start = [several ? `run=${columns.run[row] + 1}` : "", columns.iteration[row] >= 0 ? `it=${columns.iteration[row]}` : "", columns.part[row] ? "of=update" : ""];
  const where = start.filter(Boolean).join("&"), number = (numbered.get(where) ?? 0) + 1;
  numbered.set(where, number);
  addresses.push([where, `ep=${number}`].filter(Boolean).join("&"));
  rowsByAddress.set(addresses[row], row);
}
const addressOf = row => `#${addresses[row]}`;

// The row and the place in it that an address names; null if there is none such.
function placeOf(hash) {
  const found = new URLSearchParams(hash.slice(1));
  const key = ["run", "it", "of", "ep"].filter(name => found.has(name)).map(name => `${name}=${found.get(name)}`).join("&");
  const row = rowsByAddress.get(key), whole = name => /^\d{1,9}$/.test(found.get(name)) ? +found.get(name) : 0;
  return row === undefined ? null : {row, turn: found.get("turn") === "end" ? "end" : whole("turn"), token: whole("token"), colour: found.get("colour")};
}

// A shard is parsed when it is first looked at; the few latest stay.
const shards = new Map(), waiting = new Map(), KEPT = 24;

function loadShard(number) {
  if (shards.has(number)) return Promise.resolve(shards.get(number));
  if (waiting.has(number)) return waiting.get(number).promise;
  const inside = document.getElementById(`shard-${number}`);
  if (inside) return Promise.resolve(keepShard(number, inside.textContent));
  const job = {};
  job.promise = new Promise((resolve, reject) => {
    job.resolve = resolve;
    const script = el("script", {src: `${encodeURIComponent(data.folder)}/${number}.js`});
    script.onerror = () => {
      waiting.delete(number);
      reject(new Error(`This page cannot read ${data.folder}/${number}.js. Keep that folder beside the page, or write the page again with rollenv view.`));
    };
    script.onload = () => script.remove();
    document.head.append(script);
  });
  waiting.set(number, job);
  return job.promise;
}

function keepShard(number, text) {
  const episodes = JSON.parse(text);
  shards.set(number, episodes);
  if (shards.size > KEPT) shards.delete(shards.keys().next().value);
  return episodes;
}

// What the files of shards call.
window.rollenvShard = (number, text) => {
  const job = waiting.get(number);
  waiting.delete(number);
  const episodes = keepShard(number, text);
  if (job) job.resolve(episodes);
};

const loadEpisode = row => loadShard(columns.shard[row]).then(episodes => episodes[columns.at[row]]);
