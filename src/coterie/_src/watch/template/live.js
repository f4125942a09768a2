"use strict";
(() => {
  // make one tree like another, and leave alone what is the same: what has the focus keeps it
  const kept = ["aria-sort"];
  const patch = (old, fresh) => {
    if (old.isEqualNode(fresh)) return;
    if (old.nodeType !== Node.ELEMENT_NODE || old.tagName !== fresh.tagName) { old.replaceWith(fresh); return; }
    for (const { name } of [...old.attributes]) {
      if (!fresh.hasAttribute(name) && !kept.includes(name)) old.removeAttribute(name);
    }
    for (const { name, value } of [...fresh.attributes]) {
      if (old.getAttribute(name) !== value && !(kept.includes(name) && old.hasAttribute(name))) old.setAttribute(name, value);
    }
    const before = [...old.childNodes], after = [...fresh.childNodes];
    after.forEach((child, i) => (i < before.length ? patch(before[i], child) : old.append(child)));
    before.slice(after.length).forEach((child) => child.remove());
  };

  const connection = document.createElement("p");
  connection.id = "connection";
  connection.className = "note";
  connection.setAttribute("role", "status");
  connection.hidden = true;
  connection.textContent = "The connection is lost; the page tries again.";
  document.getElementById("main").before(connection);

  // every connection begins with all parts; a browser connects again by itself, except after an answer that is an error
  const connect = () => {
    const source = new EventSource("events");
    source.addEventListener("open", () => { connection.hidden = true; });
    source.addEventListener("parts", (event) => {
      const { title, parts } = JSON.parse(event.data);
      document.title = title;
      for (const [name, html] of Object.entries(parts)) {
        const holder = document.getElementById(`live-${name}`);
        if (!holder) continue;
        const fresh = holder.cloneNode(false);
        const template = document.createElement("template");
        template.innerHTML = html;
        fresh.append(template.content);
        patch(holder, fresh);
      }
      document.dispatchEvent(new Event("rewritten"));
    });
    source.addEventListener("error", () => {
      connection.hidden = false;
      if (source.readyState === EventSource.CLOSED) setTimeout(connect, 2000);
    });
  };
  connect();
})();
