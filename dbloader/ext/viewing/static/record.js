/** One record: its picture with boxes, masks and tiles, and its facts. */
import {api, className, counted, escaped, go, isElsewhere, leave, link, load, make, notice, picture, refresh, say, sized, state,
  stores, title, whyMissing} from "./app.js";
import {exact} from "./bars.js";
import {keys} from "./keys.js";

const LONGEST = 2000; // most characters shown of a value
const FIRST = 8; // number of values shown of a list
const ENLARGED = 8; // a small image is enlarged at most this number of times
/** For each EXIF orientation: the point of the upright image that shows the point (x, y) of the stored image of w × h pixels. */
const TURNED = [(x, y) => [x, y], (x, y) => [x, y], (x, y, w) => [w - x, y], (x, y, w, h) => [w - x, h - y], (x, y, w, h) => [x, h - y],
  (x, y) => [y, x], (x, y, w, h) => [h - y, x], (x, y, w, h) => [h - y, w - x], (x, y, w) => [y, w - x]];

/** Return a value in words: six digits of a number, the first values of a list. */
function words(value, name) {
  if (value === null) return "none";
  if (typeof value === "number") return String(name === "boxes" ? Math.round(10 * value) / 10 : Number.isInteger(value) ? value :
    Number(value.toPrecision(6)));
  if (typeof value !== "object") return String(value);
  if (!Array.isArray(value)) return Object.entries(value).map(([name, one]) => `${name}: ${words(one)}`).join("\n");
  const rows = value.some((one) => typeof one === "object" && one);
  const rest = value.length > FIRST ? [`… (${counted(value.length)} ${rows ? "rows" : "values"})`] : [];
  return value.length ? [...value.slice(0, FIRST).map((one) => words(one, name)), ...rest].join(rows ? "\n" : ", ") : "an empty list";
}

function readable(value, name) {
  const text = words(value, name);
  const rest = text.length > LONGEST ? ` … (the first ${counted(LONGEST)} of ${counted(text.length)} characters)` : "";
  return text.slice(0, LONGEST).split("\n").map(escaped).join("\n") + rest;
}

/** Return a heading and a table of the rows that have a value; null if there are none. */
function section(heading, rows) {
  const known = rows.filter(([, value]) => value !== null && value !== undefined);
  if (!known.length) return null;
  const lines = known.map(([name, value]) => make("tr", {}, make("th", {scope: "row"}, escaped(name)),
    make("td", {title: typeof value === "number" ? String(value) : null}, value instanceof Node ? value : readable(value, name))));
  return make("section", {}, make("h2", {}, heading), make("table", {}, make("tbody", {}, ...lines)));
}

/** Return code with a button that copies it. */
export function code(text) {
  const shown = make("code", {tabIndex: 0}, ...text.split("\n").map(escaped).flatMap((line) =>
    [...line.split(/( +)/).map((word, n) => (n % 2 ? word : make("span", {}, word))), "\n"])); // lines break only between words
  const copy = async () => {
    getSelection()?.selectAllChildren(shown); // without https, some browsers do not copy: then the user copies the marked text
    await navigator.clipboard?.writeText(shown.textContent).then(() => notice("Copied."), () => {});
  };
  return make("p", {class: "code"}, shown, make("button", {onclick: copy, ariaLabel: "Copy this code"}, "Copy"));
}

/** Return the values of a picture that are black and white, such as "0,4095", from the URL; null for the least and the greatest. */
function chosen(key) {
  const [low, high] = (state()[key] ?? "").split(",").map(Number);
  return low < high ? `${low},${high}` : null;
}

class Record extends HTMLElement {
  connectedCallback() {
    const toggle = (name) => () => this.draw(name, !this.drawn().includes(name));
    keys({
      ArrowLeft: ["Previous record", () => this.step(-1)],
      ArrowRight: ["Next record; held down, the following records as a video", () => this.step(1)],
      Escape: ["Back", leave],
      z: ["Switch between original size and the size that fits", () => go({zoom: state().zoom ? null : 1}, {replace: true})],
      d: ["Mark to drop, or keep", () => this.querySelector("db-marks")?.change({drop: true}, true)],
      b: ["Boxes", toggle("boxes")],
      t: ["Tiles", toggle("tiles")],
      m: ["Masks and other files over the image", () => this.facts?.files?.forEach((file) => toggle(`file${file.field}`)())],
    }, "record");
  }

  drawn() { return String(state().draw ?? "boxes").split(","); }

  draw(name, on) {
    const names = this.drawn().filter((other) => other !== "none" && other !== name).concat(on ? [name] : []);
    go({draw: names.join() === "boxes" ? null : names.join() || "none"}, {replace: true});
  }

  step(by) {
    const to = by < 0 ? this.before : this.after;
    if (to) go(to, {replace: true});
  }

  async show(now) {
    const key = `${now.view} ${now.store} ${now.index} ${now.sort} ${now.q} ${stores[now.store].marks.revision}`;
    if (key === this.key) return this.paint();
    this.before = this.after = undefined;
    await refresh(this, key, async (signal) => {
      const facts = await api(`/api/${now.store}/record/${now.index}`, {}, signal);
      const where = await this.neighbors(now, signal).catch((error) => ({note: error.message}));
      if (!signal.aborted) this.fill(now, facts, where);
    }, (why) => this.replaceChildren(make("p", {class: "error", role: "alert"}, why)));
  }

  /** Find the record's position in the selection, and the records before and after it. */
  async neighbors(now, signal) {
    const [{position}, {count}] = await Promise.all([
      api(`/api/${now.store}/position`, {q: now.q, sort: now.sort, index: now.index}, signal),
        api(`/api/${now.store}/select`, {q: now.q}, signal)]);
    const start = Math.max(0, (position ?? count) - 1);
    const {rows} = await api(`/api/${now.store}/rows`, {q: now.q, sort: now.sort, start, count: 3}, signal);
    const all = rows.map((row, n) => ({index: row[0], at: start + n}));
    const n = all.findIndex((each) => each.index === now.index), here = all[n];
    const to = (each) => each && (now.view === "grid" ? {open: each.index, at: each.at} : each);
    this.before = to(here ? all[n - 1] : now.sort ? undefined : all.findLast((each) => each.index < now.index));
    this.after = to(here ? all[n + 1] : now.sort ? undefined : all.find((each) => each.index > now.index));
    this.left = here ? {list: [now.store, now.q, now.sort].join(), at: here.at} : null;
    return {note: here ? `${counted(here.at + 1)} of ${counted(count)}` : "not in this search"};
  }

  fill(now, facts, where) {
    const before = this.facts?.index === facts.index && this.store === now.store && this.querySelector("db-marks");
    this.facts = facts;
    this.store = now.store;
    const wasDrawer = this.isDrawer, isDrawer = (this.isDrawer = now.view === "grid");
    const name = facts.name ?? `record ${counted(facts.index)}`;
    title(name);
    const step = (text, to, by) => {
      if (!to) return make("span", {class: "muted", ariaDisabled: "true"}, text);
      return Object.assign(link(to, text), {onclick: (event) => isElsewhere(event) || this.step(by)});
    };
    const steps = make("nav", {class: "steps", ariaLabel: "Records"},
      ...isDrawer ? [link({view: "record", index: facts.index}, "Open page")] : [link({view: null}, "All images")],
      step("← Previous", this.before, -1), step("Next →", this.after, 1), make("span", {class: "muted"}, where.note),
      isDrawer ? make("button", {ariaLabel: "Close", onclick: leave}, "×") : null);
    const heading = make("h1", {tabIndex: -1}, escaped(name));
    const focused = wasDrawer === isDrawer ? [...this.querySelectorAll("nav.steps a")].indexOf(document.activeElement) : -1;
    const active = document.activeElement, hasFocus = active === document.body || this.contains(active);
    const damage = facts.damaged &&
      make("p", {class: "damage"}, escaped(`The image was damaged before the conversion and is stored unchanged: ${
        facts.damaged.replace(/^is damaged: /, "")}`));
    const marks = make("db-marks");
    this.replaceChildren(steps, heading, marks, ...facts.error ? [make("p", {class: "damage", role: "alert"}, escaped(facts.error))] :
      [damage ?? "", make("div", {class: "sheet"}, this.stage(now, facts), this.tables(now, facts))]);
    marks.show(1, `index:${facts.index}`);
    if (hasFocus) (steps.querySelectorAll("a")[focused] ?? heading).focus({preventScroll: true});
    if (before) marks.keep(before, active);
    say(`${name}, ${where.note}`);
    if (!facts.error) this.paint();
  }

  /** Return the picture, the layers over it, and the choice of layers. */
  stage(now, facts) {
    const size = [facts.width ?? 0, facts.height ?? 0];
    [this.width, this.height] = facts.orientation > 4 ? size.reverse() : size;
    this.image = make("img", {alt: `The image of record ${facts.index}`});
    this.image.onload = () => {
      if (facts.width) return;
      [this.width, this.height] = [this.image.naturalWidth, this.image.naturalHeight];
      this.paint();
    };
    if (facts.bytes === null && facts.array === null) return make("p", {class: "muted"}, "This record has no image.");
    const rendered = picture("thumb", now.store, facts.index, {px: 1600, window: facts.range && chosen("window")});
    load(this.image, facts.rendered ? rendered : picture("image", now.store, facts.index), async (why) => {
      const cause = (await whyMissing(rendered)) ?? why; // the server decodes the image, so only the server's message has the cause
      if (this.facts === facts) this.querySelector("figure").replaceChildren(make("p", {class: "damage", role: "alert"}, escaped(cause)));
    });
    this.over = make("svg:svg", {"aria-hidden": "true", preserveAspectRatio: "none"});
    this.masks = facts.files.map(() => make("img", {class: "mask", alt: ""}));
    facts.files.forEach((file, n) => load(this.masks[n], picture("thumb", now.store, facts.index, {px: 1600, field: file.field})));
    this.frame = make("div", {class: "frame"}, this.image, ...this.masks, this.over);
    const box = (name, text) =>
      make("label", {}, make("input", {type: "checkbox", name, onchange: (event) => this.draw(name, event.target.checked)}), ` ${text}`);
    const boxes = facts.boxes.length && box("boxes", facts.boxes.length === 1 ? "1 box" : `${counted(facts.boxes.length)} boxes`);
    const tiles = facts.jpeg.tiles && box("tiles", `${facts.jpeg.tiles.across} × ${facts.jpeg.tiles.down} tiles`);
    this.opacity = make("label", {}, "Opacity ", make("input", {type: "range", min: 0, max: 100, step: 5,
      oninput: (event) => go({opacity: Number(event.target.value)}, {replace: true})}));
    this.legend = make("ul", {class: "legend"});
    this.choices = make("p", {class: "choices"},
      make("button", {onclick: () => go({zoom: state().zoom ? null : 1}, {replace: true})}, "Original size"),
      ...[boxes, tiles].filter(Boolean), ...facts.files.map((file) => box(`file${file.field}`, escaped(file.name))),
      facts.files.length ? box("beside", "side by side") : null, this.opacity);
    const windows = facts.files.map(({field, name, range}, n) =>
      this.window(now, `window${field}`, escaped(name), range, this.masks[n], field));
    this.windows = [this.window(now, "window", "the image", facts.range, this.image), ...windows].filter(Boolean);
    const note = facts.rendered &&
      make("p", {class: "muted"}, escaped(`The image is converted for the browser, to at most 1,600 pixels a side: ${facts.rendered}.`));
    return make("figure", {}, make("div", {class: "view"}, this.frame), this.choices, ...this.windows, this.legend, note || null);
  }

  /** Return fields for the values of a picture that become black and white; null if the picture has 8 bits. */
  window(now, key, name, range, image, field = null) {
    if (!range) return null;
    const show = () => {
      const given = ends.map(({value}, n) => (value === "" ? range[n] : Number(value)));
      if (given[0] < given[1]) go({[key]: given.join()}, {replace: true});
      else notice("The value for black must be less than the value for white.");
    };
    const ends = ["Black", "White"].map((color) =>
      make("input", {type: "number", step: "any", onchange: show, ariaLabel: `${color} in ${name}`}));
    const all = make("button", {onclick: () => go({[key]: null}, {replace: true})}, "All values");
    const text = `Values of ${name}: ${exact(range[0])} to ${exact(range[1])}. Black: `;
    const row = make("p", {class: "choices window"}, text, ends[0], " White: ", ends[1], all);
    row.paint = () => {
      const window = chosen(key), src = picture("thumb", now.store, this.facts.index, {px: 1600, field, window});
      ends.forEach((end, n) => (end.value = String(window?.split(",")[n] ?? range[n])));
      all.disabled = !window;
      if (image.getAttribute("src") !== src) load(image, src);
    };
    return row;
  }

  /** Show the zoom and the layers of the URL. */
  paint() {
    const facts = this.facts;
    if (!this.frame?.isConnected || !this.width) return;
    for (const each of this.windows) each.paint();
    const drawn = this.drawn(), [w, h] = [facts.width ?? this.width, facts.height ?? this.height];
    const turned = (x, y) => TURNED[facts.orientation](x, y, w, h);
    const ratio = this.width / this.height;
    this.frame.classList.toggle("small", Math.max(w, h) <= 128);
    this.choices.querySelector("button").ariaPressed = String(!!state().zoom);
    const shown = facts.files.filter((file) => drawn.includes(`file${file.field}`));
    for (const input of this.choices.querySelectorAll("[type=checkbox]"))
      Object.assign(input, {checked: drawn.includes(input.name), disabled: input.name === "beside" && !shown.length});
    const beside = drawn.includes("beside") && shown.length > 0, columns = beside ? shown.length + 1 : 1;
    facts.files.forEach((file, n) => (this.masks[n].hidden = !shown.includes(file)));
    this.opacity.hidden = beside || !shown.length;
    this.opacity.querySelector("input").value = state().opacity;
    this.frame.style.setProperty("--opacity", `${beside ? 100 : state().opacity}%`);
    this.frame.style.setProperty("--columns", columns);
    this.frame.style.aspectRatio = String(columns * ratio);
    this.frame.style.width = state().zoom ? `${columns * this.width}px` :
      `min(100%, 60vh * ${columns * ratio}, ${ENLARGED * columns * this.width}px)`;
    this.frame.classList.toggle("beside", beside);
    this.legend.replaceChildren(...shown.flatMap((file) => file.legend.map(([value, color, share, name]) => make("li", {},
      make("i", {style: `background: ${color || "none"}`}), ` ${shown.length > 1 ? `${escaped(file.name)} ` : ""}${value}`,
        name && ` ${escaped(name)}`,
      make("span", {class: "muted"}, ` ${(100 * share).toPrecision(2)} %`)))));
    this.over.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
    const parts = [];
    if (drawn.includes("tiles") && facts.jpeg.tiles) {
      const {tile_width: across, tile_height: down} = facts.jpeg.tiles;
      const line = (from, to) => `M${from}L${to}`;
      const lines = [];
      for (let x = across; x < w; x += across) lines.push(line(turned(x, 0), turned(x, h)));
      for (let y = down; y < h; y += down) lines.push(line(turned(0, y), turned(w, y)));
      parts.push(make("svg:path", {class: "tiles", d: lines.join("")}));
    }
    // of the text, in pixels of the image: 13 px on the screen
    const size = (13 * this.width * columns) / (this.frame.clientWidth || this.width);
    for (const [n, [left, top, right, bottom]] of drawn.includes("boxes") ? facts.boxes.entries() : []) {
      const [[ax, ay], [bx, by]] = [turned(left, top), turned(right, bottom)];
      const [x, y] = [Math.min(ax, bx), Math.min(ay, by)], label = facts.box_labels[n] ?? "";
      parts.push(make("svg:rect", {x, y, width: Math.abs(bx - ax), height: Math.abs(by - ay), stroke: facts.box_colors[n]}),
        make("svg:text", {x: x + size / 4, y: y + size, "font-size": size}, escaped(label)));
    }
    this.over.replaceChildren(...parts);
  }

  tables(now, facts) {
    const {fields, exif} = facts, {tiles, ...structure} = facts.jpeg, place = JSON.stringify(facts.place);
    const joined = Object.entries(facts.joined);
    const isFound = (name, value) => name.startsWith("duplicates.") && value !== "false";
    const file = (text, params) =>
      make("a", {href: picture("image", now.store, facts.index, {...params, download: 1}), download: ""}, text);
    const files = facts.files.map((one) =>
      [one.name, make("span", {}, `${escaped(fields[one.name])} `, file("Download", {field: one.field}))]);
    const names = new Set(facts.files.map((one) => one.name));
    const similar = (name) => link({view: null, index: null, at: null, sort: `like:${name}:${facts.index}`}, "Similar images");
    return make("div", {class: "facts"},
      section("Record", [
        ["index", counted(facts.index)],
        ["class", facts.class || className(now.store, facts.label) || "no label"], ["label", facts.label],
        ["pixels", facts.width && `${counted(facts.width)} × ${counted(facts.height)}`], ["resized from", facts.resized_from?.join(" × ")],
        ["format", facts.format && [facts.format, facts.range && facts.depth].filter(Boolean).join(", ")],
        ["image", facts.bytes === null ? facts.array : make("span", {}, `${sized(facts.bytes)} `, file("Download", {}))],
        ["checksum", `CRC-32 ${facts.crc}`],
        ...Object.entries(structure), ["tile", tiles && `${tiles.tile_width} × ${tiles.tile_height} pixels`],
      ]),
      section("Fields", [...files, ...Object.entries(fields).filter(([name]) => !names.has(name)).map(([name, value]) =>
        [name, name === "box_labels" && facts.box_labels.length ? readable(facts.box_labels) : facts.vectors.includes(name) ?
          make("span", {}, `${readable(value)} `, similar(name)) : value])]),
      section("Marks", joined.filter(([name, value]) => name.startsWith("mark.") && value !== "false")
        .map(([name, value]) => [name.slice(5), value])),
      section("Joined", joined.filter(([name, value]) => !/^(mark|duplicates)\./.test(name) || isFound(name, value))),
      facts.reported ? make("p", {}, link({view: "report", text: facts.name}, "This record in the report")) : null,
      section("EXIF", exif.error && facts.rendered ? [] : Object.entries(exif)),
      make("section", {}, make("h2", {}, "In Python"),
        code(`from dbloader import open_store\nstore = open_store(${place})\nrecord = store[${facts.index}]`)));
  }
}
customElements.define("db-record", Record);
