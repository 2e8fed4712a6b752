"use strict";
// The page reads without this: it only adds sorting, values under the pointer, and two buttons.
(() => {
  const collator = new Intl.Collator("en", { numeric: true });
  const key = (row, column) => {
    const cell = row.cells[column];
    const text = cell.textContent.trim();
    if (cell.dataset.value !== undefined) return Number(cell.dataset.value);
    // Numbers of figures are sorted as they are written, by the first that a cell has.
    const read = cell.className === "n" ? parseFloat(text.replace("\u2212", "-").replace(/[+,]/g, "")) : NaN;
    return Number.isNaN(read) ? text : read;
  };
  const order = (a, b) => {
    if (typeof a === "number" && typeof b === "number") return a - b;
    if (typeof a === "number") return -1; // cells without a number come last
    if (typeof b === "number") return 1;
    return collator.compare(a, b);
  };
  for (const table of document.querySelectorAll("table")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const up = head.getAttribute("aria-sort") !== "ascending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        const rows = [...table.tBodies[0].rows];
        rows.sort((a, b) => (up ? 1 : -1) * order(key(a, column), key(b, column)));
        table.tBodies[0].append(...rows);
      });
    });
  }

  const tip = document.getElementById("tip");
  const show = (text, x, y) => {
    tip.textContent = text;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(x + 12, innerWidth - box.width - 4))}px`;
    tip.style.top = `${y > box.height + 16 ? y - box.height - 10 : y + 16}px`;
  };
  const REACH = 28; // pixels from the pointer to the nearest point
  for (const picture of document.querySelectorAll(".picture")) {
    const points = [...picture.querySelectorAll(".point")].map((element) => {
      const title = element.querySelector("title");
      const text = title.textContent;
      title.remove(); // the browser would show it a second time
      return { element, text };
    });
    if (!points.length) continue;
    picture.classList.add("reading");
    const middle = ({ element }) => {
      const box = element.getBoundingClientRect();
      return box.width || box.height ? [box.x + box.width / 2, box.y + box.height / 2, box] : null;
    };
    const inside = (box, x, y) => x >= box.left && x <= box.right && y >= box.top && y <= box.bottom;
    const point = (event) => {
      let best = null;
      let least = REACH;
      for (const one of points) {
        const at = middle(one);
        if (!at) continue;
        const far = inside(at[2], event.clientX, event.clientY)
          ? 0 : Math.hypot(at[0] - event.clientX, at[1] - event.clientY);
        if (far < least) [best, least] = [one, far];
      }
      if (best) show(best.text, event.clientX, event.clientY);
      else tip.hidden = true;
    };
    let waiting = false;
    picture.addEventListener("pointermove", (event) => {
      if (waiting) return;
      waiting = true;
      requestAnimationFrame(() => { waiting = false; point(event); });
    });
    picture.addEventListener("pointerdown", point);
    picture.addEventListener("pointerleave", () => { tip.hidden = true; });
    let place = -1;
    picture.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (event.key === "Escape") tip.hidden = true;
      if (!step) return;
      event.preventDefault();
      for (let n = 0; n < points.length; n += 1) {
        place = (place + step + points.length) % points.length;
        const at = middle(points[place]);
        if (at) { show(points[place].text, at[0], at[1]); break; }
      }
    });
    picture.addEventListener("blur", () => { tip.hidden = true; });
  }

  // What an address points at is opened, with everything around it.
  const unfold = () => {
    const place = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    for (let at = place; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
    const own = place && place.querySelector(":scope > details");
    if (own) own.open = true;
    if (place) place.scrollIntoView();
  };
  addEventListener("hashchange", unfold);
  if (location.hash) unfold();

  // A live page looks at its file again, keeps its place, and can be told to stay.
  const seconds = Number(document.body.dataset.refresh || 0);
  if (seconds) {
    const key = "prism-live";
    const kept = JSON.parse(sessionStorage.getItem(key) || "{}");
    const folds = [...document.querySelectorAll("details")];
    (kept.open || []).forEach((n) => { if (folds[n]) folds[n].open = true; });
    if (kept.y) scrollTo(0, kept.y);
    let stay = kept.stay === true;
    const keep = () => sessionStorage.setItem(key, JSON.stringify({
      y: scrollY, stay, open: folds.flatMap((fold, n) => (fold.open ? [n] : [])),
    }));
    addEventListener("pagehide", keep);
    setInterval(() => { if (!stay) location.reload(); }, 1000 * seconds);
    for (const place of document.querySelectorAll(".live")) {
      const button = document.createElement("button");
      button.type = "button";
      const say = () => { button.textContent = stay ? "refresh" : `stop refreshing (every ${seconds} s)`; };
      button.addEventListener("click", () => { stay = !stay; say(); keep(); });
      say();
      place.append(button);
    }
  }

  const arms = document.querySelector(".arms fieldset");
  const boxes = [...arms.querySelectorAll("input")];
  for (const [name, on] of [["all", true], ["none", false]]) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = name;
    button.addEventListener("click", () => boxes.forEach((box) => { box.checked = on; }));
    boxes[0].closest("label").before(button);
  }
})();
