"""The look of a report: one style sheet, light and dark, for wide screens, phones and paper."""

from backstory.reports.passages import shades

CSS = (
    f"""
:root {{ {shades.variables(dark=False)} }}
@media screen and (prefers-color-scheme: dark) {{ :root {{ {shades.variables(dark=True)} }} }}
{shades.rules()}
"""
    + """
:root { color-scheme: light dark; --paper: #fdfcfa; --ink: #22211e; --soft: #67635b; --line: #e3dfd7; --tint: #f5f2ec;
  --alarm: #a32a10; --series-blue: #0072B2;
  --series-red: #D55E00;
  --serif: Charter, "Bitstream Charter", "Iowan Old Style", "Sitka Text", Cambria, Georgia, "Liberation Serif", serif;
  --sans: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Liberation Sans", Arial, sans-serif;
  --mono: ui-monospace, "SF Mono", "Cascadia Mono", Menlo, Consolas, "Liberation Mono", monospace; }
@media screen and (prefers-color-scheme: dark) {
  :root { --paper: #16171a; --ink: #e4e1da; --soft: #a09b91; --line: #34343a; --tint: #1f2024; --alarm: #ff9a7f;
    --series-blue: #3f9bd8; --series-red: #e97b33; } }
* { box-sizing: border-box; }
html { background: var(--paper); color: var(--ink); -webkit-text-size-adjust: 100%; }
body { margin: 0 auto; max-width: 52rem; padding: 3.5rem 1.5rem 4rem; font: 1.0625rem/1.6 var(--serif);
  overflow-wrap: anywhere; }
h1, h2, h3, h4 { line-height: 1.2; font-weight: 600; text-wrap: balance; }
h1 { font-size: 2.1rem; letter-spacing: -0.015em; margin: 0 0 1rem; }
h2 { font-size: 1.35rem; margin: 3.25rem 0 0.75rem; }
h3 { font-size: 1.08rem; margin: 2rem 0 0.5rem; }
h4 { font-size: 0.98rem; margin: 1.6rem 0 0.4rem; }
p { margin: 0.75rem 0; }
.kicker { font: 600 0.75rem var(--sans); letter-spacing: 0.09em; text-transform: uppercase; color: var(--soft);
  margin: 0 0 0.6rem; }
.lede { font-size: 1.25rem; line-height: 1.5; text-wrap: pretty; }
ul.lede { font-size: 1.0625rem; line-height: 1.6; padding-left: 1.1rem; margin: 1rem 0; }
.lede li { margin: 0.35rem 0; }
.note, figcaption, footer { font: 0.875rem/1.55 var(--sans); color: var(--soft); }
.alarm { color: var(--alarm); font-weight: 600; }
.scroll, pre { overflow-x: auto; scrollbar-width: thin; scrollbar-color: var(--line) transparent; }
/* A shade at the right edge says that there is more; what covers it scrolls along, and lies over it at the end. */
.scroll { margin: 1rem 0; background: linear-gradient(to left, var(--paper) 40%, transparent) 100% 0 / 3.5rem 100% local,
  linear-gradient(to left, var(--line), transparent) 100% 0 / 1.75rem 100% scroll; background-repeat: no-repeat; }
.scroll:focus-visible, summary:focus-visible { outline: 2px solid var(--series-blue); outline-offset: 3px; }
table { border-collapse: collapse; font: 0.875rem/1.45 var(--sans); font-variant-numeric: tabular-nums; min-width: 100%;
  overflow-wrap: normal; }
th, td { text-align: left; padding: 0.45rem 0.8rem 0.45rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; }
td { white-space: nowrap; }
table.plain td { white-space: normal; overflow-wrap: anywhere; }
thead th { color: var(--soft); font-weight: 500; font-size: 0.8125rem; vertical-align: bottom; }
tbody th { font-weight: 600; min-width: 4.5rem; }
tbody th span { display: -webkit-box; -webkit-box-orient: vertical; -webkit-line-clamp: 6; overflow: hidden;
  width: max-content; max-width: 12rem; overflow-wrap: anywhere; }
table.plain th span { -webkit-line-clamp: none; max-width: 20rem; }
tr > :first-child { position: sticky; left: 0; background: var(--paper); }
tr > :last-child { padding-right: 0; }
th.n, td.n { text-align: right; }
thead th.n { min-width: 4.75rem; }
figure { margin: 1.25rem 0 0; }
figure svg { display: block; width: 100%; min-width: 20rem; max-width: 40rem; height: auto; font-family: var(--sans); }
figure.wide svg { min-width: 38rem; max-width: none; }
figcaption { margin-top: 0.5rem; }
details { margin: 0.75rem 0; }
summary { cursor: pointer; font: 500 0.9375rem var(--sans); padding: 0.3rem 0; }
pre { background: var(--tint); border-radius: 6px; padding: 0.85rem 1rem; margin: 0.6rem 0;
  font: 0.8125rem/1.6 var(--mono); overflow-wrap: normal; }
dl { display: grid; grid-template-columns: 9rem 1fr; gap: 0.4rem 1rem; font: 0.875rem/1.5 var(--sans); margin: 1rem 0; }
dt { color: var(--soft); }
dd { margin: 0; min-width: 0; }
blockquote { margin: 1rem 0; padding: 0.1rem 0 0.1rem 1.1rem; border-left: 3px solid var(--line); white-space: pre-wrap; }
.prompt { color: var(--soft); }
.passage fieldset { border: 0; padding: 0; margin: 0 0 0.6rem; display: flex; flex-wrap: wrap; gap: 0.4rem;
  align-items: center; font: 0.8125rem/1.4 var(--sans); }
.passage fieldset legend { float: left; padding: 0; margin-right: 0.4rem; color: var(--soft); }
.passage label { position: relative; }
.passage input { position: absolute; inset: 0; opacity: 0; margin: 0; width: 100%; height: 100%; cursor: pointer; }
.passage label span { display: block; padding: 0.25rem 0.7rem; border: 1px solid var(--line); border-radius: 1rem; }
.passage input:checked + span { background: var(--ink); color: var(--paper); border-color: var(--ink); }
.passage input:focus-visible + span { outline: 2px solid var(--series-blue); outline-offset: 2px; }
.passage .legend { display: flex; flex-wrap: wrap; gap: 0.2rem 1rem; align-items: baseline;
  font: 0.8125rem/1.4 var(--sans); color: var(--soft); }
.passage .legend .note { font-size: inherit; }
.ramp { white-space: nowrap; font-variant-numeric: tabular-nums; }
.ramp i { display: inline-block; width: clamp(0.45rem, 2.2vw, 1rem); height: 0.75rem; vertical-align: -0.06rem; }
.passage [hidden] { display: none; }
.words { white-space: pre-wrap; line-height: 1.95; margin: 0.9rem 0 1rem; overflow-wrap: anywhere; }
.words span { border-radius: 3px; padding: 0.14em 0.06em; box-decoration-break: clone; cursor: default;
  -webkit-box-decoration-break: clone; print-color-adjust: exact; -webkit-print-color-adjust: exact; }
.ramp i { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
.ramp i[class=""] { box-shadow: inset 0 0 0 1px var(--line); }
.loss { text-decoration: underline dotted 1px; text-underline-offset: 0.22em; }
.gap { display: block; height: 0.8rem; }
.words [data-lead][class=""] { color: var(--soft); }
.words .on { box-shadow: 0 0 0 2px var(--ink); }
.words span:focus-visible { outline: 2px solid var(--series-blue); outline-offset: 3px; }
.panel { padding: 0.8rem 0 1rem; background: var(--paper);
  border-top: 1px solid var(--line); font: 0.8125rem/1.45 var(--sans); font-variant-numeric: tabular-nums; }
.panel.told { position: sticky; bottom: 0; min-height: 13.5rem; max-height: 50vh; overflow-y: auto; }
.panel p { margin: 0 0 0.4rem; color: var(--soft); }
.panel b { font: 600 1.0625rem/1.4 var(--serif); color: var(--ink); margin-right: 0.8rem; }
.panel dl { display: flex; flex-wrap: wrap; gap: 0.2rem 1.4rem; margin: 0 0 0.6rem; font: inherit; }
.panel dl div { display: flex; gap: 0.4rem; }
.panel dl dd { margin: 0; font-weight: 600; }
.parts { display: flex; flex-wrap: wrap; gap: 0.6rem 1.4rem; }
.panel table { width: auto; min-width: 9.5rem; max-width: 18rem; flex: 1 1 9.5rem; font: inherit; }
.panel caption { text-align: left; color: var(--soft); padding-bottom: 0.15rem; }
.panel td { padding: 0.1rem 0.6rem 0.1rem 0; border: 0; position: static; background: none; max-width: 7rem;
  overflow: hidden; text-overflow: ellipsis; }
.panel td.bar { width: 100%; padding: 0.1rem 0.3rem; background: linear-gradient(var(--cool4), var(--cool4)) no-repeat; }
.panel td.own { font-weight: 700; }
footer { margin-top: 4rem; padding-top: 1rem; border-top: 1px solid var(--line); }
@media (max-width: 34rem) {
  body { padding: 2rem 1rem 3rem; font-size: 1rem; }
  h1 { font-size: 1.65rem; }
  .lede { font-size: 1.125rem; }
  tbody th span, table.plain th span { max-width: 28vw; }
  table.settings th span { max-width: 42vw; }
  dl { grid-template-columns: 1fr; gap: 0; }
  dd { margin-bottom: 0.6rem; } }
@media print { body { max-width: none; padding: 0; } figure, tr { break-inside: avoid; }
  .passage .live { display: none; } .passage { break-inside: auto; } .words .on { box-shadow: none; } }
"""
)
