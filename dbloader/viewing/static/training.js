// @ts-check
import {make} from "./app.js";

class Training extends HTMLElement {
  /** @param {import("./app.js").State} state */
  show(state) {
    this.replaceChildren(make("p", {class: "muted"}, "training"));
  }
}
customElements.define("db-training", Training);
