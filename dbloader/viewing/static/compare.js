import {api, counted, escaped, link, make, picture, sized, stores, title} from "./app.js";

const HIGH = 60;
const SIZES = {width: ["Width", counted], height: ["Height", counted], aspect: ["Width / height", String], bytes: ["Bytes", sized]};
const SHOWN = 12; // pairs
const share = (count, s) => `${((100 * count) / Math.max(1, stores[s].records)).toFixed(1)}%`;

/** Return a histogram of each store over the other, each in shares of its own records. */
function overlaid(what, {edges, counts}) {
  const [name, text] = SIZES[what];
  const most = Math.max(...counts.flatMap((some, s) => some.map((count) => count / stores[s].records)), 1e-9);
  const bars = counts.flatMap((some, s) => some.map((count, n) => {
    const high = count ? Math.max(1, (count / stores[s].records / most) * HIGH) : 0;
    return make("svg:rect", {class: `of-${s}`, x: n + 0.06, y: HIGH - high, width: 0.88, height: high});
  }));
  const svg = make("svg:svg", {viewBox: `0 0 ${Math.max(1, edges.length - 1)} ${HIGH}`, preserveAspectRatio: "none", role: "img"}, ...bars);
  svg.ariaLabel = `${name} of the images of both stores`;
  const ends = edges.length ? [text(edges[0]), text(edges[edges.length - 1])] : ["no size is known", ""];
  return make("figure", {}, make("figcaption", {}, name), svg, make("div", {class: "ends"}, ...ends.map((end) => make("span", {}, end))));
}

/** Return a picture of a record that is a link to it. */
export function pictured(s, index, text) {
  const image = make("img", {src: picture("thumb", s, index, {px: 160}), alt: "", loading: "lazy"});
  const caption = make("span", {}, text);
  image.onerror = () => image.replaceWith(make("span", {class: "error"}, "cannot be shown"));
  return link({view: "record", store: s, index, q: null, at: null}, image, caption);
}

class Compare extends HTMLElement {
  show() {
    title("Two stores");
    this.controller?.abort();
    this.controller = new AbortController();
    this.look(this.controller.signal);
  }

  async look(signal) {
    clearTimeout(this.timer);
    try {
      const found = await api("/api/compare", {}, signal);
      this.draw(found);
      if (!found.finished && !this.hidden) this.timer = setTimeout(() => this.look(signal), 100);
    } catch (error) {
      if (!signal.aborted) this.replaceChildren(make("p", {class: "error", role: "alert"}, error.message));
    }
  }

  draw(found) {
    const drawn = `${found.finished} ${found.pairs.slice(0, SHOWN).length}`;
    const progress = found.finished ? "" : ` So far: ${counted(found.done)} of ${counted(found.total)} images of equal size are read.`;
    const first = found.more ? ` Of the first ${counted(found.total)} images of equal size; there are more.` : "";
    const damaged = found.damaged ? ` ${counted(found.damaged)} damaged records could not be read.` : "";
    const said = `${found.images ? `The same bytes are in both, in ${counted(found.images)} records of the second store` : "No image is in both"}.${progress}${first}${damaged}`;
    const status = this.querySelector("[role=status]");
    if (status && drawn === this.drawn) {
      status.textContent = said; // the rest stays, and with it the focus
      return;
    }
    this.drawn = drawn;
    const heads = stores.map((store, s) => make("th", {scope: "col"}, make("span", {class: `key of-${s}`}), escaped(store.place)));
    const keys = stores.map((store, s) => make("span", {}, make("span", {class: `key of-${s}`}), `${escaped(store.place)} `));
    const facts = [["Records", ...stores.map((store) => counted(store.records))], ["Image bytes", ...stores.map((store) => sized(store.image_bytes))],
      ["Formats", ...stores.map((store) => Object.entries(store.formats).map(([name, count]) => `${counted(count)} ${name}`).join(", "))]];
    const row = (name, cells) => make("tr", {}, make("th", {scope: "row"}, name), ...cells.map((cell) => make("td", {}, cell)));
    const most = Math.max(1e-9, ...found.classes.flatMap(([, ...counts]) => counts.map((count, s) => count / Math.max(1, stores[s].records))));
    const bar = (count, s) => {
      const part = make("span", {class: `part of-${s}`});
      part.style.width = `${(140 * count) / Math.max(1, stores[s].records) / most}px`;
      return make("span", {}, `${counted(count)} · ${share(count, s)}`, part);
    };
    const classes = found.classes.map(([name, ...counts]) => row(escaped(name), counts.map(bar)));
    const more = found.class_count > found.classes.length ? `the ${counted(found.classes.length)} most frequent of ${counted(found.class_count)}` : "";
    const pairs = found.pairs.slice(0, SHOWN).map(([one, two]) =>
      make("div", {class: "pair"}, pictured(0, one, `${counted(one)}`), pictured(1, two, `${counted(two)}`)));
    this.replaceChildren(make("h1", {}, "Two stores side by side"),
      make("section", {}, make("h2", {}, "Images in both"), make("p", {role: "status"}, said),
        make("p", {class: "muted"}, "For images that only look alike: ", make("code", {}, `dbloader duplicates ${stores.map((store) => escaped(store.place)).join(" ")}`)),
        make("div", {class: "pairs"}, ...pairs), found.finished && found.images > SHOWN ? make("p", {class: "muted"}, `The first ${SHOWN} pairs of ${counted(found.images)}.`) : null),
      make("section", {}, make("h2", {}, "Sizes, in shares of each store"), make("p", {class: "muted"}, ...keys), make("div", {class: "figures"}, ...Object.keys(SIZES).map((what) => overlaid(what, found.histograms[what])))),
      make("section", {class: "wide"}, make("table", {}, make("thead", {}, make("tr", {}, make("td", {}), ...heads)),
        make("tbody", {}, ...facts.map(([name, ...cells]) => row(name, cells)), ...classes)), make("p", {class: "muted"}, more)));
  }
}
customElements.define("db-compare", Compare);
