// Boards from letters of the palette.

function board([letters, block, origin, across, notes]) {
  const rows = letters.split("\n").map(line => [...line].map(letter => index.palette[letter]));
  return picture({rows, block, origin, across, notes}, data);
}

const showView = view => Array.isArray(view) ? board(view) : el("div", {class: "board text"}, pre(view));
