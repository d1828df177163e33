/** A histogram. The user chooses a range with a click, a drag, its two handles, or the arrow keys and Enter. */
import {counted, make} from "./app.js";

const HIGH = 40;

/** Return a number as text: all digits of an integer, `digits` of other numbers. Rounding to 12 digits first turns 0.1 + 0.2 into 0.3.
 * `roundingMode` "floor" rounds a lower bound down, and "ceil" rounds an upper bound up. */
export const exact = (number, digits = 6, roundingMode = "halfExpand") =>
  Number.isInteger(number) ? counted(number) :
    Number(number.toPrecision(12)).toLocaleString("en-US", {maximumSignificantDigits: digits, roundingMode});

/** Return both ends of a range as texts, with as many digits as the ends need to differ. */
function ends(least, greatest) {
  const digits = 2 + Math.ceil(Math.log10(Math.max(Math.abs(least), Math.abs(greatest)) / (greatest - least)));
  return [["floor", least], ["ceil", greatest]].map(([mode, number]) => exact(number, Math.max(3, Math.min(digits || 3, 12)), mode));
}

class Bars extends HTMLElement {
  connectedCallback() {
    const name = this.getAttribute("name");
    this.svg = make("svg:svg", {role: "listbox", tabindex: 0, preserveAspectRatio: "none", "aria-orientation": "horizontal"});
    this.handles = ["Least", "Greatest"].map((word, n) => make("i", {
      role: "slider", tabIndex: 0, ariaLabel: `${word} ${name}`, ariaValueMin: "0",
      onpointerdown: (event) => {
        event.preventDefault();
        this.svg.setPointerCapture(event.pointerId);
        this.mark(n ? this.low : this.high, n ? this.high : this.low);
      },
      onkeydown: (event) => {
        const step = {ArrowLeft: -1, ArrowRight: 1}[event.key], at = (n ? this.high : this.low) + step;
        if (!step) return;
        event.preventDefault();
        if (n ? at < this.low || at >= this.counts.length : at < 0 || at > this.high) return;
        this.mark(n ? this.low : at, n ? at : this.high);
        this.choose();
      }}));
    this.chosenRange = make("span", {class: "range"});
    this.least = make("span");
    this.greatest = make("span");
    this.scale = make("span");
    this.append(make("div", {class: "ends"}, this.chosenRange), make("div", {class: "plot"}, this.svg, ...this.handles),
      make("div", {class: "ends"}, this.least, this.scale, this.greatest));
    const at = (event) => {
      const box = this.svg.getBoundingClientRect();
      return Math.max(0, Math.min(this.counts.length - 1, Math.floor(((event.clientX - box.left) / box.width) * this.counts.length)));
    };
    this.svg.onpointerdown = (event) => {
      this.svg.setPointerCapture(event.pointerId);
      this.mark(at(event), at(event));
    };
    this.svg.onpointermove = (event) => this.mark(event.buttons ? this.from : at(event), at(event));
    this.svg.onpointerup = () => this.choose();
    this.svg.onpointerleave = (event) => event.buttons || this.mark(-1, -1);
    this.svg.onblur = () => this.mark(-1, -1);
    this.svg.onkeydown = (event) => {
      const last = this.counts.length - 1;
      const to = {ArrowLeft: Math.max(0, this.to - 1), ArrowRight: Math.min(last, this.to + 1), Home: 0, End: last}[event.key];
      if (to !== undefined) this.mark(event.shiftKey ? Math.max(0, this.from) : to, to);
      else if (event.key === "Enter") this.choose();
      else return;
      event.preventDefault();
    };
  }

  /** Show a histogram from the server. `isSearched(least, greatest, isLast)`: whether the search finds values of a bar; `whole`: whether
   * values are integers; `text(value)`: returns a label; `chosen(from, to)`: called with the edges of the chosen range, null at an open
   * end. Faint bars show all records, and have a scale of their own. */
  draw({edges, counts, all, ends: own, scale}, isSearched, whole, text, chosen) {
    Object.assign(this, {edges, counts, whole, text, chosen});
    const name = this.getAttribute("name"), last = counts.length - 1;
    const bars = (numbers, properties) => {
      const most = Math.max(1, ...numbers);
      return numbers.map((count, n) => {
        const high = count ? Math.max(1.5, (count / most) * HIGH) : 0; // a small count is visible too
        return make("svg:rect", {x: n + 0.06, y: HIGH - high, width: 0.88, height: high, ...properties(count, n)});
      });
    };
    const searched = counts.map((_, n) => isSearched(edges[n], edges[n + 1], n === last));
    [this.low, this.high] = [searched.indexOf(true), searched.lastIndexOf(true)]; // the bars in the searched range; -1 for none
    this.svg.setAttribute("viewBox", `0 0 ${counts.length} ${HIGH}`);
    this.svg.ariaLabel = `Records by ${name}`;
    this.bars = bars(counts, (count, n) => ({id: `${name}-${n}`, role: "option",
      "aria-label": `${this.range(n, n)}: ${counted(count)}${all ? ` of ${counted(all[n])}` : ""} records`}));
    this.svg.replaceChildren(make("svg:title", {}, all ? "Faint bars: all records, at their own scale" : ""),
      ...bars(all ?? [], () => ({class: "all", "aria-hidden": "true"})), ...this.bars);
    if (this.low < 0) this.ends = "no such value";
    else if (this.low || this.high < last) this.ends = this.range(this.low, this.high);
    else this.ends = all && own ? ends(...own).join(" to ") : "";
    [this.least.textContent, this.greatest.textContent] = ends(edges[0], edges.at(-1));
    this.scale.textContent = scale === "log" ? "logarithmic" : "";
    for (const [n, at] of [this.low, this.high].entries()) {
      this.handles[n].hidden = at < 0;
      if (at < 0) continue;
      this.handles[n].style.left = `${(100 * (at + n)) / counts.length}%`;
      Object.assign(this.handles[n], {ariaValueMax: String(last), ariaValueNow: String(at), ariaValueText: this.range(at, at)});
    }
    this.mark(-1, -1);
  }

  range(low, high) {
    const isLast = high === this.counts.length - 1; // only the last bar contains its upper edge
    const bounds = [this.edges[low], this.edges[high + 1] - Number(this.whole && !isLast)];
    const [first, last] = this.text === exact && !this.whole ? ends(...bounds) : bounds.map(this.text);
    return first === last ? first : `${first} to ${last}`;
  }

  /** Mark the bars from one to another; -1 for none. */
  mark(from, to) {
    [this.from, this.to] = [from, to];
    const [low, high] = [Math.min(from, to), Math.max(from, to)];
    this.bars.forEach((bar, n) => {
      bar.ariaSelected = String(n >= low && n <= high);
      bar.classList.toggle("out", to < 0 ? n < this.low || n > this.high : false);
    });
    if (to >= 0) this.svg.setAttribute("aria-activedescendant", this.bars[to].id);
    const sum = this.counts.slice(Math.max(0, low), high + 1).reduce((all, one) => all + one, 0);
    this.chosenRange.textContent = to < 0 ? this.ends : `${this.range(low, high)}: ${counted(sum)}`;
  }

  choose() {
    if (this.to < 0) return;
    const [low, high] = [Math.min(this.from, this.to), Math.max(this.from, this.to)];
    [this.low, this.high] = [low, high]; // the next key may come before the answer
    this.chosen(low ? this.edges[low] : null, high < this.counts.length - 1 ? this.edges[high + 1] : null);
  }
}
customElements.define("db-bars", Bars);
