"""The style sheet of a report's page."""

from __future__ import annotations

STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; color: #222;
  background: #f6f7f9; margin: 0 auto; max-width: 78rem; padding: 1.6rem 1.2rem 3rem; }
h1 { font-size: 1.55rem; margin: 0; display: flex; align-items: center; gap: .7rem;
  flex-wrap: wrap; }
h2 { font-size: 1.1rem; margin: 2.2rem 0 .6rem; } h3 { font-size: .95rem; margin: 0 0 .4rem; }
.facts { color: #5a6270; margin: .35rem 0 1.2rem; overflow-wrap: anywhere; }
.chip { font-size: .8rem; font-weight: 600; padding: .1rem .7rem; border-radius: 1rem; }
.good { color: #00573c; background: #d3f1e4; } .bad { color: #8c2f00; background: #ffe3d3; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(11rem, 1fr)); gap: .8rem;
  margin: 0 0 1rem; }
.tiles div, .charts img, .scroll { background: #fff; border: 1px solid #e3e6ea;
  border-radius: .6rem; }
.tiles div { padding: .7rem 1rem; display: flex; flex-direction: column; }
.tiles span, .tiles small { color: #5a6270; font-size: .8rem; }
.tiles b { font-size: 1.5rem; line-height: 1.3; font-variant-numeric: tabular-nums; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(26rem, 100%), 1fr));
  gap: .8rem; align-items: start; }
.charts img { width: 100%; height: auto; box-sizing: border-box; padding: .6rem; }
.charts .wide { grid-column: 1 / -1; }
.scroll { overflow-x: auto; padding: .3rem .4rem; }
.family { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(22rem, 100%), 1fr));
  gap: .8rem; align-items: start; }
.family .scroll td { white-space: normal; overflow-wrap: anywhere; }
.family .scroll table { width: 100%; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .85rem; }
th, td { padding: .25rem .45rem; text-align: right; white-space: nowrap; }
th { color: #5a6270; font-weight: 600; border-bottom: 1px solid #b9c0c9; white-space: normal;
  vertical-align: bottom; }
td { border-bottom: 1px solid #eef0f2; } .word { text-align: left; }
tbody tr:last-child td { border-bottom: 0; } tbody tr:hover td { background: #f3f7fb; }
ul { padding-left: 1.2rem; color: #3c434d; } li { margin: .2rem 0; overflow-wrap: anywhere; }
@media print { body { background: #fff; } }
"""
