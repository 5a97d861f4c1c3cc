"use strict";
// Below each chart, the values at the step under the pointer. The charts themselves need no script.
(() => {
  const text = (value, percent) => {
    if (value === null || value === undefined) return "–";
    return percent ? `${(100 * value).toFixed(1)} %` : String(Number(value.toPrecision(4)));
  };

  function nearest(steps, x) {
    let best = 0;
    steps.forEach((step, index) => { if (Math.abs(step - x) < Math.abs(steps[best] - x)) best = index; });
    return best;
  }

  function readout(data, x) {
    const all = data.curves.flatMap((curve) => curve.x);
    const step = all[nearest(all, x)];
    const parts = data.curves.flatMap((curve) => {
      const index = curve.x.indexOf(step);
      if (index < 0) return [];
      const around = curve.low && curve.high
        ? ` (${text(curve.low[index], data.percent)} to ${text(curve.high[index], data.percent)})` : "";
      return [`${curve.label} ${text(curve.y[index], data.percent)}${around}`];
    });
    return [step, `step ${step.toLocaleString("en")}: ${parts.join(", ")}`];
  }

  document.querySelectorAll("figure").forEach((figure) => {
    const svg = figure.querySelector("svg[data-x]"), source = figure.querySelector("script[type='application/json']");
    if (!svg || !source) return;
    const output = figure.querySelector("output"), resting = output.textContent;
    const [low, high, left, right, top, bottom] = svg.dataset.x.split(" ").map(Number);
    const rule = document.createElementNS("http://www.w3.org/2000/svg", "path");
    rule.setAttribute("class", "rule");
    svg.append(rule);
    let data = null;
    svg.addEventListener("pointermove", (event) => {
      data = data || JSON.parse(source.textContent);
      const box = svg.getBoundingClientRect();
      const at = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
      const [step, line] = readout(data, low + ((at - left) / (right - left)) * (high - low));
      rule.setAttribute("d", `M${left + ((step - low) / (high - low)) * (right - left)} ${top}V${bottom}`);
      output.textContent = line;
    });
    svg.addEventListener("pointerleave", () => {
      rule.setAttribute("d", "");
      output.textContent = resting;
    });
  });
})();
