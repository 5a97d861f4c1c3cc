"use strict";
// Draws every [data-chart] from the JSON beside it; colours follow the page's light or dark theme.
(() => {
  const slider = document.getElementById("smoothing");
  const coarse = matchMedia("(pointer: coarse)").matches;
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const faded = (hex, alpha) => hex + Math.round(alpha * 255).toString(16).padStart(2, "0");
  const escape = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

  // Exponential mean, corrected for its start as Adam does, so that the first points are not dragged to zero.
  function smooth(values, weight) {
    let mean = 0, norm = 0;
    return values.map((value) => {
      if (value === null) return null;
      mean = weight * mean + (1 - weight) * value;
      norm = weight * norm + (1 - weight);
      return mean / norm;
    });
  }

  function traces(chart, weight) {
    const percent = chart.form === "percent", log = chart.form === "log" && positive(chart);
    const format = percent ? ".1%" : ".4~g";
    return chart.curves.flatMap((curve, index) => {
      const line = color(`--c${(index % 8) + 1}`), name = escape(curve.label), group = String(index);
      const y = log ? curve.y.map((value) => (value > 0 ? value : null)) : curve.y;
      const base = { x: curve.x, type: "scatter", name, legendgroup: group };
      const hover = `%{y:${format}}`;
      if (chart.form === "stacked") {
        return [{ ...base, y, stackgroup: "all", mode: "lines", line: { width: 0.5, color: line }, fillcolor: faded(line, 0.65), hovertemplate: `%{y:.3~g} s` }];
      }
      const few = curve.x.length <= 40, sparse = few || weight === 0 || !chart.smooth;
      const out = [];
      if (curve.low && curve.high) {
        const edge = { ...base, mode: "lines", line: { width: 0 }, hoverinfo: "skip", showlegend: false };
        out.push({ ...edge, y: curve.low }, { ...edge, y: curve.high, fill: "tonexty", fillcolor: faded(line, 0.13) });
      }
      if (!sparse) out.push({ ...base, y, mode: "lines", line: { width: 1, color: faded(line, 0.3) }, hoverinfo: "skip", showlegend: false });
      out.push({
        ...base, y: sparse ? y : smooth(y, weight), mode: few ? "lines+markers" : "lines",
        line: { width: 2, color: line }, marker: { size: 5, color: line }, hovertemplate: hover,
      });
      return out;
    });
  }

  // Steps are whole numbers: one tick a step where there are few, and no SI prefix below ten thousand (d3 writes 0.5 as 500m).
  function steps(chart) {
    const last = Math.max(...chart.curves.flatMap((curve) => curve.x));
    return { tickformat: last < 10000 ? ",~f" : "~s", ...(last <= 10 ? { dtick: 1 } : {}) };
  }

  const largest = (chart) => Math.max(...chart.curves.flatMap((curve) => curve.y.map((value) => Math.abs(value))));
  const decades = (chart) => {
    const powers = chart.curves.flatMap((curve) => curve.y.filter((value) => value > 0).map(Math.log10));
    return [Math.floor(Math.min(...powers)), Math.floor(Math.max(...powers)) + 1];
  };
  const positive = (chart) => chart.curves.some((curve) => curve.y.some((value) => value > 0));

  // Bounds of the healthy range, dashed in the curve's colour; one far beyond the curve would flatten it, so it is left out.
  function bounds(chart) {
    const most = 1.5 * largest(chart);
    return chart.curves.flatMap((curve, index) => (curve.healthy || []).filter((y) => Math.abs(y) <= most).map((y) => ({
      type: "line", xref: "paper", x0: 0, x1: 1, y0: y, y1: y, line: { width: 1, dash: "dot", color: color(`--c${(index % 8) + 1}`) },
    })));
  }

  function layout(chart) {
    const soft = color("--soft"), grid = color("--line");
    const axis = { gridcolor: grid, zerolinecolor: grid, linecolor: grid, tickcolor: grid, automargin: true, fixedrange: coarse };
    const y = { ...axis, title: { text: escape(chart.unit === "none" ? "" : chart.unit), font: { size: 12 }, standoff: 8 } };
    if (chart.form === "log" && positive(chart)) Object.assign(y, { type: "log", exponentformat: "power", dtick: 1, range: decades(chart) });
    else Object.assign(y, { rangemode: "tozero", exponentformat: largest(chart) < 1 ? "power" : "SI" });
    if (chart.form === "percent") y.tickformat = ".3~%";
    return {
      xaxis: { ...axis, title: { text: "step", font: { size: 12 }, standoff: 6 }, showgrid: false, ...steps(chart) },
      yaxis: y, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: soft },
      margin: { l: 48, r: 12, t: 8, b: 40 }, hovermode: "x unified", dragmode: coarse ? false : "zoom",
      hoverlabel: { bgcolor: color("--card"), bordercolor: grid, font: { color: color("--ink"), size: 12 } },
      shapes: bounds(chart), showlegend: chart.legend, legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { size: 12 } },
    };
  }

  function draw(plot) {
    const chart = JSON.parse(document.getElementById(`data-${plot.dataset.chart}`).textContent);
    const weight = Number(slider.value);
    Plotly.react(plot, traces(chart, weight), layout(chart), { responsive: true, displaylogo: false, displayModeBar: false });
    plot.dataset.drawn = "yes";
  }

  // Charts are drawn as they come near the window, so that a page of many opens at once and the slider stays smooth.
  const plots = [...document.querySelectorAll("[data-chart]")], near = new Set();
  const refresh = (some) => some.forEach((plot) => plot.dataset.drawn || draw(plot));
  const redraw = () => {
    plots.forEach((plot) => delete plot.dataset.drawn);
    refresh(near);
  };
  const observer = new IntersectionObserver((entries) => {
    entries.forEach(({ target, isIntersecting }) => (isIntersecting ? near.add(target) : near.delete(target)));
    refresh(near);
  }, { rootMargin: "500px 0px" });
  plots.forEach((plot) => observer.observe(plot));
  if (slider) slider.addEventListener("input", () => requestAnimationFrame(redraw));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  addEventListener("beforeprint", () => refresh(plots));
})();
