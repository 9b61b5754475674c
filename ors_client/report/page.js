// Filters the transcripts, and opens the one that a link names. The page reads without it; it fetches nothing.
"use strict";
(() => {
  const filters = document.querySelector(".filters");
  if (!filters) return;
  const episodes = [...document.querySelectorAll("details")];
  const selects = [...filters.querySelectorAll("select")];
  const [text, count] = [filters.querySelector("input"), filters.querySelector("output")];
  const fact = (episode, name) => episode.querySelector(".body").dataset[name];
  const lowered = new Map(); // an episode's text in lower case, once it was looked for
  const words = (episode) => {
    if (!lowered.has(episode)) lowered.set(episode, episode.textContent.toLowerCase());
    return lowered.get(episode);
  };
  const filter = () => {
    const wanted = text.value.toLowerCase();
    let shown = 0;
    for (const episode of episodes) {
      episode.hidden =
        selects.some((select) => select.value && fact(episode, select.name) !== select.value.slice(1)) ||
        (wanted !== "" && !words(episode).includes(wanted));
      shown += !episode.hidden;
    }
    count.textContent = `${shown} of ${episodes.length} shown`;
  };
  const order = new Intl.Collator(undefined, { numeric: true }).compare;
  for (const select of selects) {
    const values = new Set(episodes.map((episode) => fact(episode, select.name)));
    // Values have a mark before them: an empty name is a value too, while no value at all stands for every episode.
    for (const value of [...values].sort(order)) select.add(new Option(value || "?", `=${value}`));
    select.parentElement.hidden = values.size < 2;
  }
  const follow = () => {
    const target = document.getElementById(location.hash.slice(1));
    const episode = target && target.closest("details");
    if (!episode) return;
    if (episode.hidden) {
      for (const field of [...selects, text]) field.value = "";
      filter();
    }
    episode.open = true;
    episode.scrollIntoView();
  };
  filters.addEventListener("input", filter);
  addEventListener("hashchange", follow);
  filters.hidden = false;
  filter();
  follow();
})();
