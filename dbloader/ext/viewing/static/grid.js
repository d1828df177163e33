/** The grid: all records of the search as thumbnails. */
import {amount, api, className, counted, escaped, find, go, labelName, leave, link, listing, load, make, notice, over as overOf,
  overlays, picture, restart, sized, state, stores, title, url} from "./app.js";
import {exact} from "./bars.js";
import {empty} from "./icons.js";
import {keys} from "./keys.js";
import {badge, onHold, toggleDrop} from "./marks.js";
import {mistaken, unfiltered} from "./query.js";
import {Scroller} from "./scroll.js";

const CHUNK = 200; // rows in one request
const CHUNKS = 20; // chunks of rows that are kept
const PAUSE_MS = 100; // between requests while the user scrolls fast
const LINE = 20; // px of a line below a thumbnail
const WIDE = 140; // px of a thumbnail that has space for a prediction and a value in one line
const SIDES = [160, 240, 320, 480, 640]; // px of the thumbnails that the server makes
const MOST = 20_000; // most records in a range
const BESIDE = matchMedia("(min-width: 1100px)"); // a record opens beside the grid
const PARTS = ["why", "kept", "marks", "number", "label", "guess", "value"]; // texts of a tile
const LONGEST = 9_000; // most characters of the selected indices: a query has at most 10,000

/** Return indices as text: 1,5-9. */
function ranges(indices) {
  const runs = [];
  for (const index of [...indices].sort((a, b) => a - b)) {
    const last = runs.at(-1);
    if (last && last[1] === index - 1) last[1] = index;
    else runs.push([index, index]);
  }
  return runs.map(([first, last]) => (first === last ? `${first}` : `${first}-${last}`)).join(",");
}

/** Return the indices in a text like 1,5-9. */
function indices(text) {
  const all = new Set();
  for (const [, first, last] of text.matchAll(/(\d+)(?:-(\d+))?/g))
    for (let index = Number(first); index <= Number(last ?? first) && all.size < 1e6; index++) all.add(index);
  return all;
}

class Grid extends HTMLElement {
  connectedCallback() {
    this.key = ""; // the store and query that are shown
    this.loaded = 0; // the time of the last request for rows
    this.chunks = new Map();
    this.selected = new Set();
    this.isAll = false; // whether all records of the search are selected, except those in this.selected
    this.anchor = null; // the position that was selected last
    this.status = make("p", {id: "count", role: "status"});
    this.jump = make("input", {id: "jump", inputMode: "numeric", size: 8, autocomplete: "off",
      onblur: () => (this.going.hidden = true),
      onkeydown: (event) => event.key === "Enter" && this.seek(this.jump.value.replace(/\D/g, "") || 0)});
    this.going = make("label", {hidden: true}, "Go to index ", this.jump);
    this.sort = make("select", {id: "sort", ariaLabel: "Sort by", onchange: () => go({sort: this.sort.value, at: null})});
    this.direction = make("button", {id: "direction",
      onclick: () => go({sort: state().sort.replace(/^-?/, (minus) => (minus ? "" : "-")), at: null})});
    this.everything = make("button", {id: "everything", title: "Select all records of this search",
      onclick: () => this.select(new Set(), true)}, "Select all");
    this.chosen = make("p", {id: "chosen"});
    this.marks = make("db-marks");
    this.overlays = make("span", {class: "overlays", ariaLabel: "Over the images", role: "group"});
    this.none = make("div", {hidden: true});
    this.list = make("div", {id: "tiles", ariaLabel: "Records", ariaMultiSelectable: "true"});
    const sorts = make("span", {class: "sorts"}, this.sort, this.direction);
    this.decide = make("div", {class: "decide", hidden: true}, this.chosen, this.marks);
    this.append(make("h1", {class: "unseen"}, "Images"),
      make("div", {class: "strip"}, this.status, this.everything, sorts, this.going, this.overlays),
      this.none, this.list, this.decide); // below the list, so the list does not move under the finger
    const scroller = this.scroller = new Scroller(this.list, {
      gap: 8, tile: () => this.tile(), fill: (cell) => this.fill(cell), clear: (cell) => this.clear(cell),
      seen: (begin, end) => this.seen(begin, end),
      settled: () => {
        const row = this.moved && state().open !== undefined && this.row(scroller.active); // keys lead the drawer, the wheel does not
        this.moved = false;
        if (state().view === "grid") go({at: scroller.active, ...row && {open: row[0]}}, {replace: true});
      },
    });
    new ResizeObserver(() => this.sharpen()).observe(this.list); // after the scroller's own observer
    const move = (by) => () => { this.moved = true; scroller.move(scroller.here() + by()); };
    keys({
      ArrowLeft: ["Previous record", move(() => -1)],
      ArrowRight: ["Next record", move(() => 1)],
      ArrowUp: ["One row up", move(() => (scroller.active >= scroller.columns ? -scroller.columns : 0))],
      ArrowDown: ["One row down", move(() => scroller.columns)],
      PageUp: ["One screen up", move(() => -scroller.page)],
      PageDown: ["One screen down", move(() => scroller.page)],
      Home: ["First record", () => scroller.move(0)],
      End: ["Last record", () => scroller.move(scroller.count - 1)],
      Enter: ["Open the record", () => this.open(scroller.here())],
      g: ["Go to an index", () => { this.going.hidden = false; this.jump.focus(); }],
      x: ["Select or deselect the record (also Ctrl-click)", () => this.toggle(scroller.here())],
      X: ["Select all records from the last selected one to this one (also Shift-click)", () => this.span(scroller.here())],
      d: ["Mark to drop, or keep", () => this.drop()],
      Escape: ["Close the record, or clear the selection", () => (state().open === undefined ? this.select(new Set()) : leave())],
    }, "grid");
  }

  async show(now) {
    const drawer = find("db-record"), isOpen = now.open !== undefined, {left} = drawer;
    if (isOpen && !BESIDE.matches) return go({view: "record", index: now.open}, {replace: true});
    if (!isOpen && left?.list === [now.store, now.q, now.sort].join()) { // back from a record: the grid shows the last one
      drawer.left = null;
      history.replaceState(history.state, "", url({at: left.at}));
      now.at = left.at;
    }
    title(now.q);
    if (isOpen) drawer.show({...now, index: Number(now.open)});
    this.selected = indices(now.selected ?? "");
    this.isAll = (now.selected ?? "").startsWith("all");
    const side = Math.max(60, Math.min(now.px, 640)) + 8;
    this.caption = 4 + LINE * (now.sort || stores[now.store].columns.prediction ? 2 : 1);
    this.scroller.layout(side, side + this.caption);
    this.list.classList.toggle("narrow", side < WIDE);
    this.sharpen();
    this.sort.replaceChildren(make("option", {value: ""}, "as stored"),
      ...stores[now.store].sorts.map((name) =>
        make("option", {value: name}, name === "odd" ? "rarest sizes first" : `by ${escaped(name)}`)));
    this.overlays.replaceChildren(...overlays(now.store));
    const [, field, index] = now.sort.match(/^-?like:(.*):(\d+)$/) ?? [];
    if (field) this.sort.append(make("option", {value: `like:${field}:${index}`}, `similar to ${index} by ${escaped(field)}`));
    this.sort.value = now.sort.replace(/^-/, "");
    this.direction.hidden = !now.sort;
    this.direction.textContent = now.sort.startsWith("-") ? "↓" : "↑";
    this.direction.ariaLabel = this.direction.title = now.sort.startsWith("-") ? "Descending" : "Ascending";
    const search = `${now.store} ${now.q}`, list = `${now.sort} ${search}`, key = `${list} ${stores[now.store].marks.revision}`;
    // "all" was selected in another search
    if (this.isAll && this.search && search !== this.search) return go({selected: null}, {replace: true});
    this.search = search;
    if (key !== this.key) {
      const kept = this.listed === list && this.key !== ""; // only marks have changed
      [this.key, this.listed, this.anchor] = [key, list, null];
      const signal = restart(this);
      for (const chunk of this.chunks.values()) chunk.stop.abort();
      if (!kept) {
        this.chunks.clear();
        this.scroller.reset(0);
      }
      try {
        const {count} = await api(`/api/${now.store}/select`, {q: now.q}, signal), of = stores[now.store].records;
        if (signal.aborted) return;
        this.status.className = "";
        this.status.textContent = count === of ? amount(of, "record") : `${counted(count)} of ${amount(of, "record")}`;
        this.none.replaceChildren(of ?
          empty("nothing", "No record matches all conditions", now.q, unfiltered()) : empty("nothing", "This store has no records"));
        this.none.hidden = count > 0;
        this.list.hidden = !count;
        this.everything.hidden = !count;
        if (kept && count === this.scroller.count) this.refresh();
        else {
          const {top, active} = this.scroller;
          this.chunks.clear();
          this.scroller.reset(count);
          this.scroller.active = kept ? Math.min(active, count - 1) : -1;
          if (kept) this.scroller.to(top);
        }
      } catch (error) {
        if (signal.aborted) return;
        this.key = ""; // the next show() asks again
        this.status.className = "error";
        this.status.textContent = error.message;
        this.list.hidden = this.everything.hidden = true;
        this.none.hidden = !now.q;
        this.none.replaceChildren(mistaken());
      }
      if (kept) return this.showSelection(); // keys may have moved on meanwhile
    }
    if (this.scroller.count && state().at !== this.scroller.active) this.scroller.move(state().at);
    this.showSelection();
    if (document.activeElement === find("#main") && this.scroller.count) this.list.focus({preventScroll: true});
  }

  /** Request the thumbnails in the size that is shown. */
  sharpen() {
    if (!this.list.clientWidth || !stores.length) return; // hidden, or the page is still loading
    const {across, down, gap} = this.scroller;
    const shown = (Math.max(across, down - this.caption) - gap) * devicePixelRatio;
    const px = SIDES.find((side) => side >= shown) ?? SIDES.at(-1);
    const over = overOf(state().store);
    if (px === this.px && over === this.over) return;
    Object.assign(this, {px, over});
    for (const cell of this.scroller.cells.values()) this.fill(cell);
  }

  /** Request the rows of the visible cells. Cancel requests for rows that were scrolled away. */
  seen(begin, end) {
    const [from, to] = [Math.floor(begin / CHUNK), Math.floor((end - 1) / CHUNK)];
    for (const [number, chunk] of this.chunks)
      if ((number < from || number > to) && (!chunk.rows || this.chunks.size > CHUNKS)) {
        chunk.stop.abort();
        this.chunks.delete(number);
      }
    clearTimeout(this.delayed);
    const wait = this.loaded + PAUSE_MS - performance.now();
    for (let number = from; number <= to; number++) {
      if (this.chunks.has(number)) continue;
      if (wait > 0) this.delayed = setTimeout(() => this.scroller.render(), wait);
      else this.ask(number);
    }
  }

  /** Request the visible rows again, and show the old rows until then. */
  refresh() {
    const visible = new Set([...this.scroller.cells.keys()].map((position) => Math.floor(position / CHUNK)));
    for (const number of this.chunks.keys()) if (!visible.has(number)) this.chunks.delete(number);
    for (const number of visible) this.ask(number);
  }

  async ask(number) {
    const [stop, now, rows] = [new AbortController(), state(), this.chunks.get(number)?.rows ?? null];
    this.loaded = performance.now();
    this.chunks.set(number, {rows, stop});
    try {
      const {rows} = await api(`/api/${now.store}/rows`, {q: now.q, sort: now.sort, start: number * CHUNK, count: CHUNK}, stop.signal);
      if (stop.signal.aborted) return;
      this.chunks.set(number, {rows, stop});
      for (const cell of this.scroller.cells.values()) if (Math.floor(cell.position / CHUNK) === number) this.fill(cell);
    } catch (error) {
      if (stop.signal.aborted) return;
      this.chunks.delete(number);
      notice(error.message);
    }
  }

  row(position) { return this.chunks.get(Math.floor(position / CHUNK))?.rows?.[position % CHUNK]; }

  tile() {
    const [why, kept, marks, number, label, guess, value, check] = [...PARTS, "check"].map((part) => make("span", {class: part}));
    const img = make("img", {alt: "", decoding: "async", draggable: false, onload: () => cell.classList.add("shown")});
    const name = make("bdi", {dir: "ltr"});
    const cell = make("div", {class: "tile"}, make("span", {class: "frame"}, img, why, check, make("span", {class: "badges"}, marks, kept),
      make("span", {class: "facts"}, number, make("span", {class: "name"}, name))),
      make("span", {class: "caption"}, make("span", {}, label), make("span", {}, guess, value)));
    cell.onclick = (event) => {
      const isTouch = event.pointerType === "touch" && !this.decide.hidden; // a long press selects the first record, and taps select more
      if (event.shiftKey) this.span(cell.position);
      else if (event.ctrlKey || event.metaKey || isTouch || event.target === check) this.toggle(cell.position);
      else this.open(cell.position);
    };
    cell.onmousedown = (event) => { if (event.shiftKey) event.preventDefault(); }; // selects no text
    onHold(cell, () => { this.toggle(cell.position); cell.classList.add("held"); });
    return Object.assign(cell, {img, why, kept, marks, name, number, label, guess, value, index: null});
  }

  clear(cell) {
    cell.img.removeAttribute("src"); // cancels the request for the picture
    cell.index = null;
    cell.className = "tile";
    for (const part of [...PARTS, "name"]) cell[part].textContent = "";
  }

  fill(cell) {
    const row = this.row(cell.position);
    if (!row) return;
    const [index, name, label, width, height, bytes, fields, isDamaged] = row;
    const {store, sort} = state();
    cell.index = index;
    cell.classList.remove("bad");
    cell.why.textContent = "";
    cell.name.textContent = escaped(name ?? "").slice(-300);
    cell.kept.textContent = isDamaged ? "damaged" : "";
    cell.kept.title = isDamaged ? "The image was damaged before the conversion and is stored unchanged" : "";
    cell.marks.textContent = cell.marks.title = badge(fields);
    cell.marks.classList.toggle("drop", fields["mark.drop"] === "true");
    const by = sort.replace(/^-/, ""), size = width && `${width} × ${height}`, sorted = fields[by];
    const named = labelName(store, label), predicted = fields.prediction, guess = labelName(store, predicted);
    const isAccepted = guess && labelName(store, fields["mark.label"]) === guess;
    const differs = guess && !isAccepted && ![label, className(store, label)].includes(predicted);
    cell.number.textContent = `${counted(index)} ·`;
    cell.label.textContent = named || cell.name.textContent;
    cell.label.title = named;
    cell.guess.textContent = guess ? (differs ? `→ ${guess}` : isAccepted ? "✓ accepted" : "✓ predicted") : escaped(by);
    cell.guess.title = guess && `prediction: ${guess}`;
    cell.guess.className = `guess ${differs ? "differs" : "same"}`;
    cell.value.textContent = sorted != null && by !== "prediction" ? (typeof sorted === "number" ? exact(sorted, 4) : escaped(sorted)) :
      {bytes: bytes && sized(bytes), aspect: width && (width / height).toPrecision(3), width: size, height: size, odd: size}[by] || "";
    const lines = Object.entries(fields).filter(([field, value]) => value !== null && !field.startsWith("mark."))
      .map(([field, value]) => `${field}: ${typeof value === "number" ? exact(value) : escaped(value)}`);
    cell.title = [`${counted(index)} · ${cell.name.textContent}`, size, ...lines].filter(Boolean).join("\n");
    cell.ariaSelected = String(this.has(index));
    load(cell.img, picture("thumb", store, index, {px: this.px, over: this.over}), (why) => {
      cell.classList.add("bad");
      cell.why.textContent = escaped(why);
    });
  }

  open(at) {
    const row = this.row(at);
    if (!row) return;
    history.replaceState(history.state, "", url({at})); // the back button returns to this position
    this.scroller.active = at;
    go(BESIDE.matches ? {open: row[0], at} : {view: "record", index: row[0], at}, {replace: state().open !== undefined});
  }

  /** Go to the first record of the search with at least this index; in a sorted search, to the record with this index. */
  async seek(index) {
    const {store, q, sort} = state();
    try {
      const {position} = await api(`/api/${store}/position`, {q, sort, index});
      this.list.focus();
      if (position !== null) this.scroller.move(position);
      else if (sort) notice("The search does not find the record with this index.");
      else notice("The search finds no record with this index or a greater index.");
    } catch (error) {
      notice(error.message);
    }
  }

  toggle(at) {
    const row = this.row(at);
    this.scroller.active = this.anchor = at;
    if (!row) return this.span(at); // span() waits for the row
    if (!this.selected.delete(row[0])) this.selected.add(row[0]);
    this.select(this.selected, this.isAll);
  }

  /** Select the records from the last selected position to this position. */
  async span(at) {
    const [{store, q, sort}, [from, to]] = [state(), [this.anchor ?? at, at].sort((a, b) => a - b)];
    if (to - from >= MOST) return notice(`A range has at most ${counted(MOST)} records.`);
    const found = [];
    try {
      for (let start = from; start <= to; start += CHUNK)
        found.push(...(await api(`/api/${store}/rows`, {q, sort, start, count: Math.min(CHUNK, to + 1 - start)})).rows);
    } catch (error) {
      return notice(error.message);
    }
    this.scroller.active = this.anchor = at;
    for (const [index] of found) this.selected[this.isAll ? "delete" : "add"](index);
    this.select(this.selected, this.isAll);
  }

  /** Mark the selected records to drop, or the active record if none is selected; keep them if they are marked. */
  async drop() {
    if (!this.decide.hidden) return this.marks.change({drop: true}, true);
    const row = this.row(this.scroller.here());
    if (row && await toggleDrop(state().store, `index:${row[0]}`, 1)) go({at: this.scroller.active}, {replace: true});
  }

  has(index) { return this.isAll !== this.selected.has(index); }

  /** Select the records with some indices. With `isAll`, select all records of the search except these. */
  select(chosen, isAll = false) {
    const selected = [isAll && "all", ranges(chosen)].filter(Boolean).join();
    if (selected.length > LONGEST)
      notice("A selection cannot contain so many single records. Mark or download them, and start a new selection.");
    else go({selected, at: this.scroller.active}, {replace: true});
  }

  showSelection() {
    for (const cell of this.scroller.cells.values()) cell.ariaSelected = String(this.has(cell.index));
    const count = this.isAll ? this.scroller.count - this.selected.size : this.selected.size;
    this.decide.hidden = !count;
    this.classList.toggle("selecting", count > 0);
    let q = `index:${ranges(this.selected)}`;
    if (this.isAll) q = !this.selected.size ? state().q : state().q ? `(${state().q}) -${q}` : `-${q}`;
    this.marks.show(count, q);
    this.chosen.replaceChildren(`${counted(count)} selected: `, link({q, at: null, selected: null}, "Show"),
      link({view: "review", q, at: null, selected: null}, "Review"), listing(state().store, q),
      make("button", {onclick: () => this.select(new Set())}, "Deselect"));
  }
}
customElements.define("db-grid", Grid);
