// @ts-check
import {make} from "./app.js";

class Duplicates extends HTMLElement {
  /** @param {import("./app.js").State} state */
  show(state) {
    this.replaceChildren(make("p", {class: "muted"}, "duplicates"));
  }
}
customElements.define("db-duplicates", Duplicates);
