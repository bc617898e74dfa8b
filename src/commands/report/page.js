"use strict";
// Shows the lists of the page, as far as they are unfolded. Whatever a recording says becomes text by textContent and
// never markup.

const AT_ONCE = 300; // rows of one list before "Show more"
const UNFOLDED = 80; // rows that are unfolded at first
const FOUND = 250; // the same with a filter
const STATUSES = { created: "+", changed: "~", renamed: "→", deleted: "−" };
const WORDS = {
  created: "created", changed: "changed", renamed: "renamed", deleted: "deleted",
  mount_point: "mount point", temporary: "temporary",
  unaltered: "unaltered", inherited: "inherited", git: "Git's state", read: "read",
};

function el(tag, cls, ...content) {
  const node = document.createElement(tag);
  if (cls) node.className = cls;
  node.append(...content);
  return node;
}

function button(cls, text, title, action) {
  const node = el("button", cls, text);
  node.type = "button";
  if (title) node.title = title;
  node.addEventListener("click", action);
  return node;
}

const number = (count) => count.toLocaleString("en-US");
const counted = (count, one, many) => `${number(count)} ${count === 1 ? one : many}`;

function bytes(size) {
  if (size < 1024) return `${size} B`;
  let unit = -1;
  while (size >= 1024 && unit < 5) { size /= 1024; unit += 1; }
  return `${size.toFixed(size < 10 ? 2 : 1)} ${["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"][unit]}`;
}

function duration(micros) {
  if (micros < 1000) return `${micros} µs`;
  if (micros < 1e6) return `${(micros / 1000).toFixed(micros < 1e4 ? 1 : 0)} ms`;
  const seconds = micros / 1e6;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
  const whole = Math.round(seconds);
  return whole < 3600 ? `${Math.floor(whole / 60)} min ${whole % 60} s`
    : `${Math.floor(whole / 3600)} h ${Math.floor(whole % 3600 / 60)} min`;
}

// Appends what `make` makes of the rows, a screenful at a time.
function some(parent, rows, make, first = AT_ONCE) {
  let at = 0;
  let limit = first;
  const next = () => {
    const end = Math.min(rows.length, at + limit);
    limit = Math.max(first, AT_ONCE);
    const part = document.createDocumentFragment();
    for (; at < end; at += 1) part.append(make(rows[at]));
    parent.append(part);
    if (at < rows.length) {
      const left = rows.length - at;
      const more = button("more", left > limit ? `Show ${number(limit)} more of ${number(left)}` : `Show ${number(left)} more`, "", () => {
        more.remove();
        const shown = parent.childElementCount;
        next();
        const fresh = parent.children[shown];
        const target = fresh && (fresh.querySelector("summary, button") || fresh);
        if (target) target.focus();
      });
      parent.append(more);
    }
  };
  next();
}

// The directory tree of paths. Each node counts what is beneath it.
function tree(rows) {
  const root = { name: "", dirs: new Map(), rows: [], row: null, count: 0, size: 0, counts: {}, lines: [0, 0] };
  const beneath = (row) => {
    const passed = [root];
    let node = root;
    let from = row.p.startsWith("/") ? 1 : 0;
    for (;;) {
      const to = row.p.indexOf("/", from);
      if (to < 0) break;
      const name = row.p.slice(from, to);
      let next = node.dirs.get(name);
      if (!next) {
        next = { name, dirs: new Map(), rows: [], row: null, count: 0, size: 0, counts: {}, lines: [0, 0] };
        node.dirs.set(name, next);
      }
      node = next;
      passed.push(node);
      from = to + 1;
    }
    const name = row.p.slice(from);
    for (const above of passed) {
      above.count += 1;
      above.size += row.z || 0;
      above.counts[row.g] = (above.counts[row.g] || 0) + 1;
      if (row.c) { above.lines[0] += row.c[0]; above.lines[1] += row.c[1]; }
    }
    node.rows.push({ name, row });
  };
  rows.forEach(beneath);
  return root;
}

// A directory with a single directory in it, and nothing else, is shown as one.
function shortened(node, name) {
  while (node.rows.length === 0 && node.dirs.size === 1) {
    const [only] = node.dirs.values();
    name += only.name + "/";
    node = only;
  }
  return [node, name];
}

function children(node) {
  const own = new Map(node.rows.map(({ name, row }) => [name, row]));
  const inner = [...node.dirs.values()].map((dir) => {
    const [shown, name] = shortened(dir, dir.name + "/");
    return { name, node: shown, row: own.get(dir.name) || null };
  });
  // A directory that has entries is told in its own line.
  const rows = node.rows.filter(({ name }) => !node.dirs.has(name));
  const leaves = rows.map(({ name, row }) => ({ name: name || "/", node: null, row }));
  const order = (one, other) => (one.name < other.name ? -1 : one.name > other.name ? 1 : 0);
  return [...inner.sort(order), ...leaves.sort(order)];
}

class Recording {
  constructor(article, index) {
    this.article = article;
    this.index = index;
    Object.assign(this, JSON.parse(document.getElementById(`lists-${index}`).textContent));
    this.byId = new Map(this.processes.map((process) => [process.id, process]));
    this.uses = new Map();
    for (const list of [this.changes, this.reads]) {
      for (const row of list) {
        [row.w.map(([id]) => id), row.u].forEach((ids, at) => ids.forEach((id) => {
          const uses = this.uses.get(id) || [0, 0];
          uses[at] += 1;
          this.uses.set(id, uses);
        }));
      }
    }
    this.order();
  }

  part(name) { return this.article.querySelector(`[data-part="${name}"]`); }

  // The processes depth first, each with its depth. A parent that is not there, or not older, is none.
  order() {
    const children = new Map();
    const roots = [];
    for (const process of this.processes) {
      if (this.byId.has(process.parent) && process.parent < process.id) {
        if (!children.has(process.parent)) children.set(process.parent, []);
        children.get(process.parent).push(process);
      } else roots.push(process);
    }
    this.ordered = [];
    const stack = roots.reverse().map((process) => [process, 0]);
    while (stack.length > 0) {
      const [process, depth] = stack.pop();
      process.depth = depth;
      this.ordered.push(process);
      const below = children.get(process.id) || [];
      for (let at = below.length - 1; at >= 0; at -= 1) stack.push([below[at], depth + 1]);
    }
  }

  diff(index) {
    this.diffs ||= JSON.parse(document.getElementById(`diffs-${this.index}`).textContent);
    return this.diffs[index];
  }

  // Who changed a path, or else who used it.
  users(row) {
    const named = (id, name) => ({ id, name: name || this.byId.get(id)?.name || "process", command: this.byId.get(id)?.command || "" });
    return row.w?.length > 0 ? row.w.map(([id, name]) => named(id, name)) : row.u.map((id) => named(id));
  }

  hayOfPath(row) {
    row.hay ||= [row.p, row.g, ...(row.n || []), ...this.users(row).map((user) => user.name)].join("\n").toLowerCase();
    return row.hay;
  }

  hayOfProcess(process) {
    process.hay ||= `${process.command}\n${process.name}\n${process.cwd}`.toLowerCase();
    return process.hay;
  }

  show(filter) {
    const matches = (row) => filter.words.every((word) => wordOfPath(this, row, word));
    const isAll = filter.words.length === 0;
    const pick = (rows, test) => (isAll ? rows : rows.filter(test));
    const changes = pick(this.changes, matches);
    const reads = pick(this.reads, matches);
    const network = pick(this.network, (row) => filter.words.every((word) => wordOfAddress(this, row, word)));
    const processes = pick(this.ordered, (process) => filter.words.every((word) => wordOfProcess(this, process, word)));
    this.showPaths("changes", changes, this.changes, isAll);
    this.showPaths("reads", reads, this.reads, isAll);
    this.map(reads);
    this.showProcesses(processes, isAll);
    this.showNetwork(network, isAll);
    return changes.length + reads.length + processes.length + network.length;
  }

  showPaths(name, rows, all, isAll) {
    const part = this.part(name);
    part.hidden = !isAll && rows.length === 0;
    const list = part.querySelector(".list");
    list.replaceChildren();
    const of = isAll ? "" : ` of ${number(all.length)}`;
    part.querySelector(".count").textContent = `${number(rows.length)}${of} path${all.length === 1 ? "" : "s"}`;
    if (rows.length === 0) {
      list.append(el("p", "faint", name === "changes" ? "Nothing was changed." : "Nothing was recorded as only read."));
      return;
    }
    const [root, prefix] = shortened(tree(rows), "/");
    let budget = isAll ? UNFOLDED : FOUND;
    const withDiffs = rows.filter((row) => row.f !== undefined);
    this.opensDiffs = name === "changes" && withDiffs.length <= (isAll ? 8 : 3);
    const top = this.directory({ name: prefix, node: root });
    list.append(top);
    // The uppermost directories are unfolded as long as there is room.
    let level = [top];
    while (level.length > 0) {
      const next = [];
      for (const details of level) {
        if (details !== top && details.size > budget) continue;
        budget -= details.size;
        details.open = true;
        details.fill();
        next.push(...details.querySelectorAll(":scope > .kids > .dir"));
      }
      level = next;
    }
  }

  directory({ name, node, row }) {
    const details = el("details", "dir");
    const counts = el("span", "note");
    if (row && row.g !== "read") counts.append(el("span", `tag ${STATUSES[row.g] ? row.g : "other"} own`, WORDS[row.g] || row.g), " ");
    for (const [group, sign] of Object.entries(STATUSES)) {
      if (node.counts[group]) {
        const count = el("span", `tag ${group}`, `${sign}${number(node.counts[group])} `);
        count.title = `${number(node.counts[group])} ${group}`;
        counts.append(count);
      }
    }
    const others = node.count - Object.keys(STATUSES).reduce((sum, group) => sum + (node.counts[group] || 0), 0);
    if (others > 0) counts.append(counted(others, others === node.count ? "path" : "other", others === node.count ? "paths" : "others"));
    const size = node.size > 0 ? bytes(node.size) : "";
    details.append(el("summary", "row", el("span", "name", name), el("span", "meta", counts, el("span", "size", size))));
    const kids = el("div", "kids");
    details.append(kids);
    details.size = node.rows.length + node.dirs.size;
    details.fill = () => {
      if (details.isFilled) return;
      details.isFilled = true;
      const entries = children(node);
      some(kids, entries, (entry) => (entry.node ? this.directory(entry) : this.leaf(entry)));
    };
    details.addEventListener("toggle", () => { if (details.open) details.fill(); });
    return details;
  }

  leaf({ name, row }) {
    const has = row.f !== undefined;
    const line = el(has ? "summary" : "div", has ? "row" : "row leaf");
    const tag = STATUSES[row.g] ? row.g : "other";
    if (row.g !== "read") line.append(el("span", `tag ${tag}`, WORDS[row.g] || row.g));
    line.append(el("span", "name", row.d && name !== "/" ? `${name}/` : name));
    const meta = el("span", "meta");
    if (row.o && row.g !== "read") meta.append(el("span", "outside", "outside"));
    if (row.c) meta.append(el("span", "note", el("span", "plus", `+${number(row.c[0])}`), " ", el("span", "minus", `−${number(row.c[1])}`)));
    if (row.n) meta.append(el("span", "note", row.n.join(", ")));
    meta.append(this.by(row), el("span", "size", row.z === undefined ? "" : bytes(row.z)));
    line.append(meta);
    if (!has) return line;
    const details = el("details", "file", line);
    const fill = () => {
      if (details.isFilled) return;
      details.isFilled = true;
      details.append(this.hunks(this.diff(row.f)));
    };
    details.addEventListener("toggle", () => { if (details.open) fill(); });
    details.fill = fill;
    if (this.opensDiffs && (!row.c || row.c[0] + row.c[1] <= 60)) { details.open = true; fill(); }
    return details;
  }

  // The processes of a row, as buttons.
  by(row) {
    const by = el("span", "note");
    const users = this.users(row);
    for (const { id, name, command } of users.slice(0, 3)) {
      by.append(button("by", `${name} ${id}`, command, (event) => { event.preventDefault(); filterBy(`by:${id}`, this.article); }));
    }
    if (users.length > 3) by.append(`and ${users.length - 3} more`);
    return by;
  }

  showNetwork(rows, isAll) {
    const part = this.part("network");
    part.hidden = rows.length === 0;
    const of = isAll ? "" : ` of ${number(this.network.length)}`;
    part.querySelector(".count").textContent = `${number(rows.length)}${of} use${this.network.length === 1 ? "" : "s"} of addresses`;
    const list = part.querySelector(".list");
    list.replaceChildren();
    some(list, rows, (row) => {
      const meta = el("span", "meta");
      if (row.e) meta.append(el("span", "bad", `failed: ${row.e}`));
      if (row.c > 1) meta.append(el("span", "note", `${number(row.c)} times`));
      meta.append(this.by(row));
      return el("div", "row leaf", el("span", "tag other", row.g), el("span", "name", row.p), meta);
    });
  }

  hunks(diff) {
    const pre = el("pre", "diff");
    pre.tabIndex = 0;
    const lines = diff.t ? diff.t.split("\n") : [];
    if (lines.length > 0 && lines[lines.length - 1] === "") lines.pop();
    const kinds = { "+": "a", "-": "r", "@": "h", "\\": "h" };
    some(pre, lines, (line) => el("span", kinds[line[0]] || "", line), 2000);
    if (diff.n) pre.append(el("span", "h", diff.n));
    return pre;
  }

  showProcesses(processes, isAll) {
    const part = this.part("processes");
    part.hidden = !isAll && processes.length === 0;
    part.querySelector(".count").textContent = isAll ? number(processes.length) : `${number(processes.length)} of ${number(this.ordered.length)}`;
    const list = part.querySelector(".list");
    list.replaceChildren();
    const isTimed = this.span > 0 && processes.some((process) => process.start !== undefined);
    if (isTimed) {
      const ticks = el("span", "ticks", el("span", "", "0"), el("span", "", duration(this.span / 2)), el("span", "", duration(this.span)));
      list.append(el("div", "process axis", el("span", ""), ticks, el("span", "took", "took"), el("span", "end", "ended")));
    } else if (processes.length > 0) {
      list.append(el("p", "faint", "When each process started and ended was not recorded."));
    }
    some(list, processes, (process) => this.process(process, isTimed, isAll), isAll ? 40 : AT_ONCE);
  }

  process(process, isTimed, isAll) {
    const line = el("div", isTimed ? "process" : "process untimed");
    const what = el("span", "command");
    what.append(button("by", String(process.id), `Only what process ${process.id} used`, () => filterBy(`by:${process.id}`, this.article)), " ", process.command);
    if (isAll) what.style.marginLeft = `${Math.min(process.depth, 12) * 0.9}rem`;
    what.title = process.cwd;
    const [changed, used] = this.uses.get(process.id) || [0, 0];
    const uses = [changed && `changed ${counted(changed, "path", "paths")}`, used && `used ${counted(used, changed ? "other" : "path", changed ? "others" : "paths")}`];
    if (changed || used) what.append(" ", el("span", "note", uses.filter(Boolean).join(", ")));
    if (process.former) what.append(" ", el("span", "note", `(before that: ${process.former.join(", ")})`));
    line.append(what);
    if (isTimed) {
      const track = el("span", "track");
      let took = "";
      if (process.start !== undefined) {
        const end = process.end ?? this.span;
        const bar = el("i", process.status ? "bad" : "");
        bar.style.left = `${Math.min(100, process.start / this.span * 100)}%`;
        bar.style.width = `${Math.max(0, Math.min(100, (end - process.start) / this.span * 100))}%`;
        track.append(bar);
        took = process.end === undefined ? "" : duration(process.end - process.start);
        track.title = `from ${duration(process.start)} to ${process.end === undefined ? "the end of the recording" : duration(process.end)}`;
      }
      line.append(track, el("span", "took", took));
    }
    const status = process.status;
    line.append(el("span", status ? "end bad" : "end faint", status === undefined ? "" : `exit ${status}`));
    return line;
  }

  // What was read, each directory as large as its files.
  map(rows) {
    const place = this.part("reads").querySelector(".map");
    place.replaceChildren();
    const root = tree(rows);
    const hasSizes = root.size > 0;
    const weight = (node) => (hasSizes ? node.size : node.count);
    const entriesOf = (node) => children(node).map(({ name, node: dir, row }) => ({
      name, dir, row, weight: dir ? weight(dir) : hasSizes ? row.z || 0 : 1,
    })).filter((entry) => entry.weight > 0).sort((one, other) => other.weight - one.weight);
    const show = (trail, isMoved) => {
      let node = trail[trail.length - 1].node;
      let entries = entriesOf(node);
      // A map of one directory alone shows nothing.
      while (entries.length === 1 && entries[0].dir) {
        trail = [...trail, { name: entries[0].name, node: entries[0].dir }];
        node = entries[0].dir;
        entries = entriesOf(node);
      }
      if (entries.length < 2 && !isMoved) return;
      const crumbs = el("p", "crumbs");
      trail.forEach(({ name }, at) => {
        if (at + 1 < trail.length) crumbs.append(button("", name, "", () => show(trail.slice(0, at + 1), true)));
        else crumbs.append(el("b", "name", name));
      });
      crumbs.append(el("span", "note", ` ${counted(node.count, "path", "paths")}${hasSizes ? `, ${bytes(node.size)}` : ""}`));
      const tiles = el("div", "tiles");
      squares(entries.slice(0, 60)).forEach(({ entry, x, y, w, h }, at) => {
        const amount = hasSizes ? bytes(entry.weight) : counted(entry.weight, "path", "paths");
        const label = `${entry.name} ${amount}`;
        const tile = button(`tile t${at % 8}`, w > 4 && h > 9 ? label : "", label, () => {
          if (entry.dir) show([...trail, { name: entry.name, node: entry.dir }], true);
          else filterBy(`"${entry.row.p}"`, this.article);
        });
        tile.setAttribute("aria-label", label);
        Object.assign(tile.style, { left: `${x}%`, top: `${y}%`, width: `${w}%`, height: `${h}%` });
        tiles.append(tile);
      });
      place.replaceChildren(crumbs, tiles);
      if (isMoved) (tiles.querySelector("button") || crumbs.querySelector("button"))?.focus();
    };
    const [top, name] = shortened(root, "/");
    show([{ name, node: top }], false);
  }
}

// A squarified treemap of a square of 100 by 100, which is drawn four times as wide as it is high.
function squares(entries) {
  const RATIO = 4;
  const out = [];
  const total = entries.reduce((sum, entry) => sum + entry.weight, 0);
  let [x, y, w, h] = [0, 0, 100 * RATIO, 100];
  const scale = (w * h) / total;
  const worst = (row, sum, side) => row.reduce((most, entry) => {
    const area = entry.weight * scale;
    const other = sum * scale;
    return Math.max(most, (side * side * area) / (other * other), (other * other) / (side * side * area));
  }, 0);
  let at = 0;
  while (at < entries.length) {
    const side = Math.min(w, h);
    const row = [entries[at]];
    let sum = entries[at].weight;
    at += 1;
    while (at < entries.length && worst([...row, entries[at]], sum + entries[at].weight, side) <= worst(row, sum, side)) {
      sum += entries[at].weight;
      row.push(entries[at]);
      at += 1;
    }
    const depth = (sum * scale) / side;
    let along = 0;
    for (const entry of row) {
      const length = (entry.weight / sum) * side;
      if (w >= h) out.push({ entry, x: x / RATIO, y: y + along, w: depth / RATIO, h: length });
      else out.push({ entry, x: (x + along) / RATIO, y, w: length / RATIO, h: depth });
      along += length;
    }
    if (w >= h) { x += depth; w -= depth; } else { y += depth; h -= depth; }
  }
  return out;
}

const LASTING = new Set(Object.keys(STATUSES));

function wordOfPath(recording, row, word) {
  if (word.is === "lasting") return LASTING.has(row.g);
  if (word.is === "outside") return Boolean(row.o) && LASTING.has(row.g);
  if (word.is !== undefined) return row.g === word.is;
  if (word.by !== undefined) return row.u.includes(word.by) || row.w.some(([id]) => id === word.by);
  return recording.hayOfPath(row).includes(word.text);
}

function wordOfAddress(recording, row, word) {
  if (word.is !== undefined) return word.is === "network" || word.is === row.g;
  if (word.by !== undefined) return row.u.includes(word.by);
  return recording.hayOfPath(row).includes(word.text);
}

function wordOfProcess(recording, process, word) {
  if (word.is !== undefined) return word.is === "failed" && Boolean(process.status);
  if (word.by !== undefined) return process.id === word.by;
  return recording.hayOfProcess(process).includes(word.text);
}

// Words, or parts in double quotes, that must all match.
function parse(text) {
  const words = [];
  for (const [, exact, plain] of text.matchAll(/"([^"]*)"?|(\S+)/g)) {
    const word = (exact ?? plain).toLowerCase();
    if (exact === undefined && /^is:./.test(word)) words.push({ is: word.slice(3) });
    else if (exact === undefined && /^by:\d+$/.test(word)) words.push({ by: Number(word.slice(3)) });
    else if (word) words.push({ text: word });
  }
  return { words };
}

const input = document.getElementById("filter");
const found = document.getElementById("found");
const recordings = [...document.querySelectorAll("article")].map((article, index) => new Recording(article, index));
let shown = null;

function apply() {
  const text = input.value.trim();
  if (text === shown) return;
  shown = text;
  const filter = parse(text);
  let count = 0;
  for (const recording of recordings) count += recording.show(filter);
  found.textContent = filter.words.length === 0 ? "" : count === 0 ? "nothing matches" : counted(count, "match", "matches");
}

// Filters, and shows what is found of the recording that was looked at.
function filterBy(text, article) {
  input.value = text;
  apply();
  const part = article.querySelector(".part:not([hidden])") || article;
  const { top } = part.getBoundingClientRect();
  if (top < 0 || top > innerHeight * 0.8) part.scrollIntoView();
}

let timer = 0;
input.addEventListener("input", () => {
  clearTimeout(timer);
  timer = setTimeout(apply, 120);
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && input.value) { input.value = ""; apply(); input.focus(); }
  if (event.key === "/" && document.activeElement !== input && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    input.focus();
  }
});
for (const answer of document.querySelectorAll("button.answer")) {
  answer.addEventListener("click", () => filterBy(answer.dataset.filter, answer.closest("article")));
}
// Paper has no buttons: unless they are too many, all paths are unfolded on it.
addEventListener("beforeprint", () => {
  for (let round = 0; round < 40; round += 1) {
    const folded = [...document.querySelectorAll("details:not([open])")];
    if (folded.length === 0 || document.querySelectorAll(".row").length > 1500) return;
    for (const details of folded) { details.open = true; details.fill(); }
  }
});
apply();
