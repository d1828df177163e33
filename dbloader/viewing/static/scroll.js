/** A list of any length in columns: only what is seen is in the document, and its elements are used again.
 *
 * Browsers end an element at some 16 million px, which 10 million thumbnails exceed. So the scrolled element is at most
 * TALLEST high. Its scroll bar then moves by proportion, while the wheel, keys and fingers move by px. */
import {make} from "./app.js";

const TALLEST = 8_000_000; // px
const SETTLE_MS = 250; // browsers allow 200 changes of the URL in 30 s

export class Scroller {
  /** `list` becomes a listbox of cells, which `use.tile` makes; `use.fill(cell)` shows cell.position and `use.clear(cell)` stops
   * that; `use.seen(begin, end)` hears what is visible, `use.settled` that scrolling has ended. */
  constructor(list, use) {
    this.use = use;
    this.gap = use.gap ?? 0;
    this.count = this.top = this.set = 0; // top: px in a list without limit; set: the scrollTop that this code gave
    this.active = 0; // the position that keys act on
    this.columns = this.across = this.down = this.wanted = 1;
    this.cells = new Map(); // by position
    this.spare = [];
    this.layer = make("div", {role: "none", class: "layer"});
    this.spacer = make("div", {role: "none", class: "spacer"}, this.layer);
    this.list = list;
    list.role = "listbox";
    list.tabIndex = 0;
    list.append(this.spacer);
    list.addEventListener("scroll", () => {
      if (!this.read()) return;
      this.render();
      this.settle();
    });
    list.addEventListener("wheel", (event) => {
      if (this.scale === 1 || event.ctrlKey) return;
      event.preventDefault();
      this.to(this.top + event.deltaY * [1, this.down / 3, this.high][event.deltaMode]);
      this.settle();
    }, {passive: false});
    let y = 0;
    list.addEventListener("touchstart", (event) => (y = event.touches[0].clientY), {passive: true});
    list.addEventListener("touchmove", (event) => {
      if (this.scale === 1 || event.touches.length > 1) return;
      event.preventDefault();
      this.to(this.top + y - event.touches[0].clientY);
      y = event.touches[0].clientY;
      this.settle();
    }, {passive: false});
    new ResizeObserver(() => this.layout()).observe(list);
  }

  /** Show another list of `count` cells from its beginning. */
  reset(count) {
    this.count = count;
    this.top = this.active = 0;
    for (const position of this.cells.keys()) this.release(position);
    this.spare = [...this.layer.children]; // so that their order in the document is that of the list again
    this.layout();
  }

  /** Place the cells; the active one stays where it is on the screen. `width` is the least of a cell, 0: that of the list. */
  layout(width = this.wanted, height = this.down) {
    const before = this.down;
    [this.wanted, this.down] = [width, height];
    if (!this.list.clientWidth) return; // hidden
    const offset = Math.floor(this.active / this.columns) * before - this.top;
    this.high = this.list.clientHeight;
    const wide = this.list.clientWidth - this.gap;
    this.columns = width ? Math.max(1, Math.floor(wide / width)) : 1;
    this.across = wide / this.columns;
    this.total = Math.ceil(this.count / this.columns) * height + this.gap;
    this.spacer.style.height = `${Math.min(this.total, TALLEST)}px`;
    this.list.style.setProperty("--across", `${this.across - this.gap}px`);
    this.list.style.setProperty("--down", `${height - this.gap}px`);
    this.to(Math.floor(this.active / this.columns) * height - offset);
  }

  /** How many px of the list one px of the scroll bar is. */
  get scale() {
    return this.total > TALLEST ? (this.total - this.high) / (TALLEST - this.high) : 1;
  }

  /** How many cells fit on the screen. */
  get page() {
    return this.columns * Math.max(1, Math.floor(this.high / this.down));
  }

  to(top) {
    this.top = Math.max(0, Math.min(top, this.total - this.high));
    this.list.scrollTop = this.top / this.scale;
    this.set = this.list.scrollTop;
    this.render();
  }

  /** Take over where the scroll bar was moved to, and return whether it was. Browsers tell it only with the next frame. */
  read() {
    if (!this.list.clientWidth || Math.abs(this.list.scrollTop - this.set) < 1) return false;
    this.set = this.list.scrollTop;
    this.top = this.set * this.scale;
    return true;
  }

  /** Return the position that keys act on: the active one, or the first that is visible if it was scrolled away. */
  here() {
    this.read();
    const middle = Math.floor(this.active / this.columns) * this.down - this.top + this.down / 2;
    if (middle < 0 || middle > this.high) this.active = Math.min(Math.ceil(this.top / this.down) * this.columns, this.count - 1);
    return this.active;
  }

  /** Make a position the active one, and bring it into view. */
  move(position) {
    this.read();
    this.active = Math.max(0, Math.min(position, this.count - 1));
    const top = Math.floor(this.active / this.columns) * this.down;
    if (top < this.top) this.to(top);
    else if (top + this.down + this.gap > this.top + this.high) this.to(top + this.down + this.gap - this.high);
    else this.render();
    this.settle();
  }

  /** When scrolling ends, make a visible cell the active one. */
  settle() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => {
      this.here();
      this.render();
      this.use.settled?.();
    }, SETTLE_MS);
  }

  render() {
    if (!this.list.clientWidth) return;
    const first = Math.max(0, Math.floor(this.top / this.down) - 1);
    const begin = first * this.columns;
    const end = Math.min(this.count, (Math.ceil((this.top + this.high) / this.down) + 1) * this.columns);
    this.layer.style.transform = `translateY(${first * this.down - this.top + this.list.scrollTop}px)`;
    for (const position of this.cells.keys()) if (position < begin || position >= end) this.release(position);
    for (let position = begin; position < end; position++) {
      const cell = this.cells.get(position) ?? this.take(position);
      const [row, column] = [Math.floor(position / this.columns) - first, position % this.columns];
      cell.style.transform = `translate(${this.gap + column * this.across}px, ${this.gap + row * this.down}px)`;
      cell.classList.toggle("active", position === this.active);
      if (position === this.active) this.list.setAttribute("aria-activedescendant", cell.id);
    }
    this.use.seen?.(begin, end);
  }

  take(position) {
    const cell = this.spare.shift() ?? this.layer.appendChild(this.use.tile());
    Object.assign(cell, {position, id: `${this.list.id}-${position}`, role: "option", hidden: false, ariaPosInSet: String(position + 1),
      ariaSetSize: String(this.count)});
    this.cells.set(position, cell);
    this.use.fill(cell);
    return cell;
  }

  release(position) {
    const cell = this.cells.get(position);
    this.cells.delete(position);
    this.spare.push(cell);
    cell.hidden = true;
    this.use.clear?.(cell);
  }
}
