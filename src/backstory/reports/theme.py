"""The look of a report: one style sheet, light and dark, for wide screens, phones and paper."""

CSS = """
:root { color-scheme: light dark; --paper: #fdfcfa; --ink: #22211e; --soft: #67635b; --line: #e3dfd7; --tint: #f5f2ec;
  --alarm: #a32a10; --series-blue: #0072B2;
  --series-red: #D55E00;
  --serif: Charter, "Bitstream Charter", "Iowan Old Style", "Sitka Text", Cambria, Georgia, "Liberation Serif", serif;
  --sans: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Liberation Sans", Arial, sans-serif;
  --mono: ui-monospace, "SF Mono", "Cascadia Mono", Menlo, Consolas, "Liberation Mono", monospace; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #16171a; --ink: #e4e1da; --soft: #a09b91; --line: #34343a; --tint: #1f2024; --alarm: #ff9a7f;
    --series-blue: #3f9bd8; --series-red: #e97b33; } }
* { box-sizing: border-box; }
html { background: var(--paper); color: var(--ink); -webkit-text-size-adjust: 100%; }
body { margin: 0 auto; max-width: 50rem; padding: 3.5rem 1.5rem 4rem; font: 1.0625rem/1.6 var(--serif);
  overflow-wrap: anywhere; }
h1, h2, h3 { line-height: 1.2; font-weight: 600; text-wrap: balance; }
h1 { font-size: 2.1rem; letter-spacing: -0.015em; margin: 0 0 1rem; }
h2 { font-size: 1.35rem; margin: 3.25rem 0 0.75rem; }
h3 { font-size: 1.08rem; margin: 2rem 0 0.5rem; }
p { margin: 0.75rem 0; }
.kicker { font: 600 0.75rem var(--sans); letter-spacing: 0.09em; text-transform: uppercase; color: var(--soft);
  margin: 0 0 0.6rem; }
.lede { font-size: 1.25rem; line-height: 1.5; text-wrap: pretty; }
ul.lede { font-size: 1.0625rem; line-height: 1.6; padding-left: 1.1rem; margin: 1rem 0; }
.lede li { margin: 0.35rem 0; }
.note, figcaption, footer { font: 0.875rem/1.55 var(--sans); color: var(--soft); }
.alarm { color: var(--alarm); font-weight: 600; }
.scroll, pre { overflow-x: auto; scrollbar-width: thin; scrollbar-color: var(--line) transparent; }
.scroll { margin: 1rem 0; }
.scroll:focus-visible, summary:focus-visible { outline: 2px solid var(--series-blue); outline-offset: 3px; }
table { border-collapse: collapse; font: 0.875rem/1.45 var(--sans); font-variant-numeric: tabular-nums; min-width: 100%;
  overflow-wrap: normal; }
th, td { text-align: left; padding: 0.45rem 0.9rem 0.45rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; }
td { white-space: nowrap; }
table.plain td { white-space: normal; overflow-wrap: anywhere; }
thead th { color: var(--soft); font-weight: 500; font-size: 0.8125rem; vertical-align: bottom; }
tbody th { font-weight: 600; min-width: 4.5rem; }
tbody th span { display: -webkit-box; -webkit-box-orient: vertical; -webkit-line-clamp: 3; overflow: hidden;
  width: max-content; max-width: 12rem; overflow-wrap: anywhere; }
table.plain th span { -webkit-line-clamp: none; max-width: 20rem; }
tr > :first-child { position: sticky; left: 0; background: var(--paper); }
tr > :last-child { padding-right: 0; }
th.n, td.n { text-align: right; }
thead th.n { min-width: 5.5rem; }
figure { margin: 1.25rem 0 0; }
figure svg { display: block; width: 100%; min-width: 20rem; max-width: 40rem; height: auto; font-family: var(--sans); }
figcaption { margin-top: 0.5rem; }
details { margin: 0.75rem 0; }
summary { cursor: pointer; font: 500 0.9375rem var(--sans); padding: 0.3rem 0; }
pre { background: var(--tint); border-radius: 6px; padding: 0.85rem 1rem; margin: 0.6rem 0;
  font: 0.8125rem/1.6 var(--mono); overflow-wrap: normal; }
dl { display: grid; grid-template-columns: 9rem 1fr; gap: 0.4rem 1rem; font: 0.875rem/1.5 var(--sans); margin: 1rem 0; }
dt { color: var(--soft); }
dd { margin: 0; min-width: 0; }
footer { margin-top: 4rem; padding-top: 1rem; border-top: 1px solid var(--line); }
@media (max-width: 34rem) {
  body { padding: 2rem 1rem 3rem; font-size: 1rem; }
  h1 { font-size: 1.65rem; }
  .lede { font-size: 1.125rem; }
  tbody th span, table.plain th span { max-width: 28vw; }
  dl { grid-template-columns: 1fr; gap: 0; }
  dd { margin-bottom: 0.6rem; } }
@media print { body { max-width: none; padding: 0; } figure, tr { break-inside: avoid; } }
"""
