/** A list of any length in columns. The document contains only the visible cells. The element of a cell that leaves the view shows
 * another cell.
 *
 * Browsers limit an element to about 16 million px, too few for 10 million thumbnails. So the scrolled element is at most
 * TALLEST high. The scroll bar of a longer list moves in proportion. The wheel, keys and fingers always move by px. */
import {make} from "./app.js";

const TALLEST = 8_000_000; // px
const SETTLE_MS = 250; // from the last movement to `settled`, which changes the URL: browsers allow only 200 changes of the URL in 30 s

export class Scroller {
  /** Make an element a listbox. `use.tile()` returns a new cell, `use.fill(cell)` shows cell.position in it, and `use.clear(cell)`
   * empties it. `use.seen(begin, end)` is called with the visible positions, and `use.settled()` after scrolling. */
  constructor(list, use) {
    this.use = use;
    this.gap = use.gap ?? 0;
    this.count = this.top = this.set = 0; // top: px in the list of unlimited height; set: the scrollTop that this code has set
    this.active = 0; // the position on which keys act
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

  /** Show a new list of `count` cells from its beginning. */
  reset(count) {
    this.count = count;
    this.top = this.active = 0;
    for (const position of this.cells.keys()) this.release(position);
    this.spare = [...this.layer.children]; // restores the order of the list in the document
    this.layout();
  }

  /** Place the cells. The active cell keeps its place on the screen. `width` is the least width of a cell; 0 for one column. */
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

  /** Pixels of the list for each pixel of the scroll bar. */
  get scale() { return this.total > TALLEST ? (this.total - this.high) / (TALLEST - this.high) : 1; }

  /** Number of cells that fit on the screen. */
  get page() { return this.columns * Math.max(1, Math.floor(this.high / this.down)); }

  to(top) {
    this.top = Math.max(0, Math.min(top, this.total - this.high));
    this.list.scrollTop = this.top / this.scale;
    this.set = this.list.scrollTop;
    this.render();
  }

  /** Read the position of the scroll bar, and return whether the user has moved it. Its event would come only with the next frame. */
  read() {
    if (!this.list.clientWidth || Math.abs(this.list.scrollTop - this.set) < 1) return false;
    this.set = this.list.scrollTop;
    this.top = this.set * this.scale;
    return true;
  }

  /** Return the active position. If it is not visible, first make the first visible position the active one. */
  here() {
    this.read();
    const middle = Math.floor(this.active / this.columns) * this.down - this.top + this.down / 2;
    if (middle < 0 || middle > this.high) this.active = Math.min(Math.ceil(this.top / this.down) * this.columns, this.count - 1);
    return this.active;
  }

  /** Make a position the active one, and scroll to it. */
  move(position) {
    this.read();
    this.active = Math.max(0, Math.min(position, this.count - 1));
    const top = Math.floor(this.active / this.columns) * this.down;
    if (top < this.top) this.to(top);
    else if (top + this.down + this.gap > this.top + this.high) this.to(top + this.down + this.gap - this.high);
    else this.render();
    this.settle();
  }

  /** After scrolling, make a visible cell the active one. */
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
    Object.assign(cell, {position, id: `${this.list.id}-${position}`, role: "option", hidden: false,
      ariaPosInSet: String(position + 1), ariaSetSize: String(this.count)});
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
