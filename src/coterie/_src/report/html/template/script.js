"use strict";
(() => {
  const all = (query, root = document) => [...root.querySelectorAll(query)];

  // light and dark
  const root = document.documentElement;
  const theme = document.getElementById("theme");
  const dark = () => root.dataset.theme === "dark" ||
    (!root.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);
  const label = () => {
    theme.textContent = dark() ? "Light" : "Dark";
    theme.setAttribute("aria-pressed", String(dark()));
  };
  theme.hidden = false;
  label();
  theme.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; label(); });
  const print = document.getElementById("print");
  print.hidden = false;
  print.addEventListener("click", () => window.print());

  // tables: sort by a column, keep the rows that hold a text
  const compare = (a, b) => {
    if (a === "" || b === "") return a === b ? 0 : a === "" ? 1 : -1; // what is not known comes last
    const x = Number(a), y = Number(b);
    return Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b, undefined, { numeric: true }) : x - y;
  };
  const key = (row, column) => (row.cells[column].dataset.key ?? row.cells[column].textContent).trim();
  const order = (table) => { // by the heading that says so
    const headings = all("thead th", table);
    const column = headings.findIndex((heading) => heading.getAttribute("aria-sort") !== "none");
    if (column < 0) return;
    const down = headings[column].getAttribute("aria-sort") === "descending";
    const rows = [...table.tBodies[0].rows].map((row) => [key(row, column), row]);
    rows.sort(([a], [b]) => (down && a !== "" && b !== "" ? -compare(a, b) : compare(a, b)));
    const sorted = rows.map(([, row]) => row);
    if (sorted.some((row, i) => row !== table.tBodies[0].rows[i])) table.tBodies[0].append(...sorted);
  };
  document.addEventListener("click", (event) => {
    const heading = event.target.closest?.("table.sortable thead button")?.closest("th");
    if (!heading) return;
    const table = heading.closest("table");
    const down = heading.getAttribute("aria-sort") === "ascending";
    all("thead th", table).forEach((other) => other.setAttribute("aria-sort", "none"));
    heading.setAttribute("aria-sort", down ? "descending" : "ascending");
    order(table);
  });
  const keep = (field) => {
    const table = document.getElementById(field.dataset.filter);
    const count = document.querySelector(`[data-count="${field.dataset.filter}"]`);
    const wanted = field.value.trim().toLowerCase();
    const rows = [...table.tBodies[0].rows];
    for (const row of rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
    const left = rows.filter((row) => !row.hidden).length;
    count.textContent = left === rows.length ? `${left} rows` : `${left} of ${rows.length} rows`;
  };
  document.addEventListener("input", (event) => {
    if (event.target.dataset?.filter) keep(event.target);
  });
  document.addEventListener("rewritten", () => { // a page that is shown by a server
    all("table.sortable").forEach(order);
    all("[data-filter]").forEach(keep);
  });

  // one of several variants of a figure
  for (const menu of all("[data-choice]")) {
    const show = () => all(`[data-variant^="${menu.dataset.choice}-"]`).forEach((variant) => {
      variant.hidden = variant.dataset.variant !== `${menu.dataset.choice}-${menu.value}`;
    });
    menu.addEventListener("change", show);
    show();
  }

  // a text beside the pointer
  const tip = document.getElementById("tip");
  document.addEventListener("pointermove", (event) => {
    const marked = event.target instanceof Element ? event.target.closest("[data-tip]") : null;
    tip.hidden = !marked;
    if (!marked) return;
    tip.textContent = marked.dataset.tip;
    const box = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - box.width - 8))}px`;
    tip.style.top = `${event.clientY + 18 + box.height > innerHeight ? event.clientY - box.height - 10 : event.clientY + 18}px`;
  });
  document.addEventListener("pointerleave", () => { tip.hidden = true; });

  // the values of all lines at one round
  for (const figure of all("[data-series]")) {
    const data = JSON.parse(document.getElementById(figure.dataset.series).textContent);
    const svg = figure.querySelector("svg");
    const slider = figure.querySelector(".slider");
    const readout = figure.querySelector(".readout");
    const cursor = svg.querySelector(".cursor");
    const written = (value) => (value === null ? "–" : Math.abs(value) >= 1e-3 && Math.abs(value) < 1e5
      ? String(Number(value.toPrecision(3))) : value.toExponential(1));
    const show = (index) => {
      const x = data.places[index];
      cursor.setAttribute("x1", x);
      cursor.setAttribute("x2", x);
      cursor.classList.remove("off");
      readout.replaceChildren(...[["round", data.rounds[index]], ...data.series.map(([name, values]) =>
        [name, written(values[Math.min(index, values.length - 1)])])].map(([name, value]) => {
        const item = document.createElement("span");
        const bold = document.createElement("b");
        bold.textContent = value;
        item.append(`${name} `, bold);
        return item;
      }));
    };
    show(data.rounds.length - 1);
    cursor.classList.add("off");
    slider.addEventListener("input", () => show(Number(slider.value)));
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const x = (event.clientX - box.left) / box.width * svg.viewBox.baseVal.width;
      let nearest = 0;
      data.places.forEach((place, i) => {
        if (Math.abs(place - x) < Math.abs(data.places[nearest] - x)) nearest = i;
      });
      slider.value = nearest;
      show(nearest);
    });
  }

  // what belongs to a method stands out while the pointer is on its name
  for (const part of all("[data-method]")) {
    const mark = (on) => all("svg [data-method]").forEach((other) => {
      other.classList.toggle("faint", on && other.dataset.method !== part.dataset.method);
    });
    part.addEventListener("pointerenter", () => mark(true));
    part.addEventListener("pointerleave", () => mark(false));
  }

  // copy
  for (const button of all("[data-copy]")) {
    button.addEventListener("click", async () => {
      const source = document.getElementById(button.dataset.copy);
      try {
        await navigator.clipboard.writeText(source.textContent);
      } catch {
        const range = document.createRange();
        range.selectNodeContents(source);
        getSelection().removeAllRanges();
        getSelection().addRange(range);
        document.execCommand("copy");
      }
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
  }
})();
