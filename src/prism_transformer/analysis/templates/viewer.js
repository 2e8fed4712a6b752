"use strict";
(async () => {
  const WHOLE = 65535;
  const facts = JSON.parse(document.getElementById("data").textContent);
  const make = (tag, attributes = {}, text = "") => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    if (text) element.textContent = text; // never as HTML: names and texts are a user's
    return element;
  };
  const percent = (units) => `${(100 * units / WHOLE).toFixed(2)} %`;
  const shown = (token) => token.replaceAll("\n", "\u23ce").replaceAll("\t", "\u21e5") || "(nothing)";

  const unpack = async (text) => {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Uint16Array(await new Response(stream).arrayBuffer());
  };

  const tip = document.getElementById("tip");
  const say = (text, x, y) => {
    tip.textContent = text;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(x + 12, innerWidth - box.width - 4))}px`;
    tip.style.top = `${y > box.height + 16 ? y - box.height - 10 : y + 16}px`;
  };
  const hush = () => { tip.hidden = true; };
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hush(); });

  const models = [];
  let statistic = Object.keys(facts.statistics)[0];
  const number = (value) => value.toPrecision(4);
  const range = () => {
    const all = facts.models.flatMap((model) => model.statistics[statistic].flat());
    return [Math.min(...all), Math.max(...all)];
  };

  class Model {
    constructor(own, values) {
      Object.assign(this, own, { values, layer: 0, head: 0, query: own.tokens.length - 1 });
      this.length = own.tokens.length;
      this.size = 2 * this.length * this.kept + this.rowStart(this.blocks);
      this.starts = own.heads.map((_, layer) => own.heads.slice(0, layer).reduce((a, b) => a + b, 0));
      this.cells = new Map();
      this.build();
    }

    // -- what was packed ---------------------------------------------------------------------
    // Blocks before this row: of an encoder every row has all columns, else those up to its own.
    rowStart(row) { return this.both_ways ? row * this.blocks : row * (row + 1) / 2; }
    lastColumn(row) { return this.both_ways ? this.blocks - 1 : row; }
    sees(query, key) { return this.both_ways || key <= query; }

    at() { return (this.starts[this.layer] + this.head) * this.size; }

    largest(query) {
      const from = this.at() + query * this.kept;
      const weights = from + this.length * this.kept;
      return Array.from({ length: this.kept }, (_, n) => ({
        key: this.values[from + n], units: this.values[weights + n],
      })).filter((each) => each.units > 0);
    }

    block(row, column) {
      return this.values[this.at() + 2 * this.length * this.kept + this.rowStart(row) + column];
    }

    told(layer, head) {
      const each = Object.entries(facts.statistics).map(([name, [label, unit]]) =>
        `${label} ${number(this.statistics[name][layer][head])} ${unit}`);
      return `layer ${layer}, head ${head} of width ${this.widths[layer]}\n${each.join("\n")}`;
    }

    // -- what is shown -----------------------------------------------------------------------
    build() {
      this.root = make("section", { class: "model", "aria-label": this.source });
      const title = make("h2", {}, `${this.source} `);
      title.append(make("span", {}, this.schedule));
      const top = make("div", { class: "top" });
      this.about = make("p", { "aria-live": "polite" });
      this.picture = document.createElementNS("http://www.w3.org/2000/svg", "svg");
      const head = make("div", { class: "head" });
      head.append(this.about, this.picture);
      top.append(this.buildMap(), head);
      const reading = make("div", { class: "reading" });
      this.looks = make("div", { class: "looks", "aria-live": "polite" });
      reading.append(this.buildText(), this.looks);
      this.root.append(title, top, reading);
      document.getElementById("models").append(this.root);
      this.buildBlocks();
    }

    buildMap() {
      const most = Math.max(...facts.models.flatMap((model) => model.heads));
      const map = make("div", { class: "map", role: "group", "aria-label": `Heads of ${this.source}` });
      map.style.gridTemplateColumns = `repeat(${this.heads.length}, minmax(0, 1fr))`;
      map.style.setProperty("--cell", `${Math.max(0.7, Math.min(2.6, 15 / most))}rem`);
      this.heads.forEach((n, layer) => {
        for (let head = 0; head < n; head += 1) {
          const cell = make("button", { type: "button" });
          cell.style.gridArea = `${most - head} / ${layer + 1}`;
          cell.addEventListener("click", () => this.choose(layer, head));
          cell.addEventListener("pointermove", (event) => say(this.told(layer, head), event.clientX, event.clientY));
          cell.addEventListener("pointerleave", hush);
          cell.addEventListener("keydown", (event) => this.step(event, layer, head));
          this.cells.set(`${layer} ${head}`, cell);
          map.append(cell);
        }
        const label = make("span", { "aria-hidden": "true" }, String(layer));
        label.style.gridArea = `${most + 1} / ${layer + 1}`;
        map.append(label);
      });
      return map;
    }

    buildText() {
      const text = make("div", {
        class: "text", tabindex: "0", role: "group",
        "aria-label": `Text of ${this.source}; left and right arrows choose a token`,
      });
      this.words = this.tokens.map((token, place) => {
        const word = make("span", {}, token.replaceAll("\n", "\u23ce\n") || "\u00b7");
        word.addEventListener("click", () => this.read(place));
        word.addEventListener("pointermove", (event) => {
          const found = this.largest(this.query).find((each) => each.key === place);
          const weight = !this.sees(this.query, place) ? "later: not seen" : found ? percent(found.units)
            : `not among its ${this.kept} largest weights`;
          say(`${place}: ${shown(token)}\n${weight}`, event.clientX, event.clientY);
        });
        word.addEventListener("pointerleave", hush);
        text.append(word);
        return word;
      });
      text.addEventListener("keydown", (event) => {
        const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (!step) return;
        event.preventDefault();
        this.read(Math.max(0, Math.min(this.length - 1, this.query + step)));
        this.words[this.query].scrollIntoView({ block: "nearest" });
      });
      this.text = text;
      return text;
    }

    buildBlocks() {
      const n = this.blocks;
      this.picture.setAttribute("class", "blocks");
      this.picture.setAttribute("viewBox", `0 0 ${n} ${n}`);
      this.picture.setAttribute("role", "img");
      const svg = (name, box) => {
        const element = document.createElementNS("http://www.w3.org/2000/svg", name);
        for (const [key, value] of Object.entries(box)) element.setAttribute(key, value);
        this.picture.append(element);
        return element;
      };
      this.rects = [];
      for (let row = 0; row < n; row += 1) {
        for (let column = 0; column <= this.lastColumn(row); column += 1) {
          this.rects.push([row, column, svg("rect", { x: column, y: row, width: 1.02, height: 1.02 })]);
        }
      }
      this.row = svg("rect", { class: "row", x: 0, y: 0, width: 1, height: 1 });
      const place = (event) => {
        const box = this.picture.getBoundingClientRect();
        const of = (share) => Math.max(0, Math.min(n - 1, Math.floor(n * share)));
        return [of((event.clientY - box.top) / box.height), of((event.clientX - box.left) / box.width)];
      };
      const spans = (block) => {
        const first = this.block_first[block];
        const last = (this.block_first[block + 1] ?? this.length) - 1;
        return first === last ? `${first}` : `${first} to ${last}`;
      };
      this.block_first = Array.from({ length: n }, (_, block) => this.own_block.indexOf(block));
      this.picture.addEventListener("pointermove", (event) => {
        const [row, column] = place(event);
        if (column > this.lastColumn(row)) { hush(); return; }
        say(`queries ${spans(row)} on keys ${spans(column)}\nmean weight ${percent(this.block(row, column))}`, event.clientX, event.clientY);
      });
      this.picture.addEventListener("pointerleave", hush);
      this.picture.addEventListener("click", (event) => {
        const [row] = place(event);
        this.read((this.block_first[row + 1] ?? this.length) - 1);
        this.words[this.query].scrollIntoView({ block: "nearest" });
      });
    }

    colour() {
      const [low, high] = range();
      this.heads.forEach((n, layer) => {
        for (let head = 0; head < n; head += 1) {
          const value = this.statistics[statistic][layer][head];
          const cell = this.cells.get(`${layer} ${head}`);
          const on = layer === this.layer && head === this.head;
          cell.style.setProperty("--share", `${100 * (high > low ? (value - low) / (high - low) : 0.5)}%`);
          cell.setAttribute("aria-pressed", String(on));
          cell.setAttribute("tabindex", on ? "0" : "-1");
          const [label, unit] = facts.statistics[statistic];
          cell.setAttribute("aria-label", `layer ${layer}, head ${head}: ${label} ${number(value)} ${unit}`);
        }
      });
    }

    step(event, layer, head) {
      const [right, up] = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key] || [];
      if (right === undefined) return;
      event.preventDefault();
      const to = Math.max(0, Math.min(this.heads.length - 1, layer + right));
      const next = Math.max(0, Math.min(this.heads[to] - 1, head + up));
      this.choose(to, next);
      this.cells.get(`${to} ${next}`).focus();
    }

    choose(layer, head) {
      [this.layer, this.head] = [layer, head];
      this.colour();
      this.about.replaceChildren();
      this.told(layer, head).split("\n").forEach((line, n) => {
        this.about.append(make(n ? "span" : "b", {}, line), document.createElement("br"));
      });
      this.rects.forEach(([row, column, rect]) => {
        rect.style.setProperty("--share", `${100 * Math.sqrt(this.block(row, column) / WHOLE)}%`);
      });
      this.picture.setAttribute("aria-label", `Mean weights of layer ${layer}, head ${head}: queries downwards, keys to the right`);
      this.show();
    }

    read(query, alone = false) {
      this.query = query;
      this.show();
      // Two models that read the same words look at the same one.
      if (!alone) models.filter((each) => each !== this && each.same === this.same).forEach((each) => each.read(query, true));
    }

    show() {
      const found = this.largest(this.query);
      const by = new Map(found.map((each) => [each.key, each.units]));
      this.words.forEach((word, place) => {
        const share = Math.sqrt((by.get(place) || 0) / WHOLE);
        word.classList.toggle("seen", by.has(place));
        word.classList.toggle("dark", share > 0.6);
        word.classList.toggle("now", place === this.query);
        word.classList.toggle("later", !this.sees(this.query, place));
        word.style.setProperty("--share", `${100 * share}%`);
      });
      const row = this.own_block[this.query];
      this.row.setAttribute("y", row);
      this.row.setAttribute("width", this.lastColumn(row) + 1);
      const rest = WHOLE - found.reduce((sum, each) => sum + each.units, 0);
      const title = make("p");
      title.append("Token ", make("b", {}, `${this.query}: ${shown(this.tokens[this.query])}`), " attends to");
      const table = make("table");
      const head = table.createTHead().insertRow();
      head.append(make("th", { scope: "col" }, "token"), make("th", { scope: "col", class: "n" }, "place"), make("th", { scope: "col", class: "n" }, "weight"));
      const body = table.createTBody();
      const line = (...cells) => {
        const added = body.insertRow();
        cells.forEach((text, n) => added.append(make("td", n ? { class: "n" } : {}, text)));
      };
      found.forEach((each) => line(shown(this.tokens[each.key]), String(each.key), percent(each.units)));
      if (this.query >= found.length) line("all others together", "", percent(Math.max(0, rest)));
      this.looks.replaceChildren(title, table);
    }
  }

  const choice = document.getElementById("choice");
  const scale = make("span", { class: "scale" });
  const ends = [make("span"), make("i", { "aria-hidden": "true" }), make("span")];
  scale.append(...ends);
  const colour = () => {
    const [low, high] = range();
    ends[0].textContent = number(low);
    ends[2].textContent = `${number(high)} ${facts.statistics[statistic][1]}`;
    models.forEach((model) => model.colour());
  };
  for (const [name, [label]] of Object.entries(facts.statistics)) {
    const item = make("label");
    const radio = make("input", { type: "radio", name: "statistic", value: name, autocomplete: "off" });
    radio.checked = name === statistic;
    radio.addEventListener("change", () => { statistic = name; colour(); });
    item.append(radio, label);
    choice.append(item);
  }
  choice.append(scale);
  choice.hidden = false;
  document.getElementById("models").classList.toggle("two", facts.models.length > 1);
  for (const own of facts.models) {
    const model = new Model({ ...own, same: own.tokens.join("\u0000") }, await unpack(own.packed));
    models.push(model);
  }
  // First the head of lowest entropy: its weights are the easiest to see.
  for (const model of models) {
    const each = model.statistics.entropy.flatMap((layer, n) => layer.map((value, head) => [value, n, head]));
    const [, layer, head] = each.reduce((best, one) => (one[0] < best[0] ? one : best));
    model.choose(layer, head);
  }
  colour();
})();
