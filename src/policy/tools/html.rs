//! The matrix as one HTML page for a reviewer's browser.
//! Never puts a text from a file on the page unescaped, and loads nothing from elsewhere.

use std::fmt::Write;

use super::access::Matrix;

impl Matrix {
    /// The matrix as a page of its own: no scripts, nothing loaded from elsewhere.
    #[must_use]
    pub fn to_html(&self) -> String {
        let mut page = String::from(HEAD);
        // Writing to a String cannot fail.
        let _infallible = self.body(&mut page);
        page
    }

    fn body(&self, page: &mut String) -> std::fmt::Result {
        writeln!(page, "<p>Policy revision <code>{}</code>.\n{LEGEND}", escaped(&self.revision.to_string()))?;
        writeln!(page, "<table>\n<thead><tr><th>method</th>")?;
        for callers in &self.callers {
            writeln!(page, "<th scope=col>{}</th>", escaped(&callers.to_string()))?;
        }
        writeln!(page, "</tr></thead>\n<tbody>")?;
        for row in &self.rows {
            write!(page, "<tr><th scope=row><code>{}</code>", escaped(&row.method))?;
            if let Some(description) = &row.description {
                write!(page, "<br><small>{}</small>", escaped(description))?;
            }
            for budget in &row.budgets {
                write!(page, "<br><small>budget {}</small>", escaped(&budget.to_string()))?;
            }
            writeln!(page, "</th>")?;
            for cell in &row.cells {
                let word = cell.word();
                write!(page, "<td class={}>", cell.access)?;
                if cell.rules.is_empty() {
                    write!(page, "{word}")?;
                } else {
                    write!(page, "<details><summary>{word}</summary><ul>")?;
                    for rule in &cell.rules {
                        write!(page, "<li>{}</li>", escaped(&rule.to_string()))?;
                    }
                    write!(page, "</ul></details>")?;
                }
                writeln!(page, "</td>")?;
            }
            writeln!(page, "</tr>")?;
        }
        writeln!(page, "</tbody></table>\n</body></html>")
    }
}

fn escaped(text: &str) -> String {
    let safe = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    safe.replace('"', "&quot;").replace('\'', "&#39;")
}

const LEGEND: &str = "\
<b class=allowed>yes</b> every call in the caller's own name with parameters and claims of their types,
<b class=conditional>if</b> under conditions (open the cell), <b class=denied>-</b> no rule allows it, unless another
column of the same caller does: its roles, its name, <b class=denied>no</b> never: a rule denies it, whatever other
columns say.</p>";

const HEAD: &str = "<!doctype html>
<html lang=en><head><meta charset=utf-8><title>Who can call what</title>
<meta http-equiv=Content-Security-Policy content=\"default-src 'none'; style-src 'unsafe-inline'\">
<style>
body { font: 15px/1.4 system-ui, sans-serif; margin: 2em; color: #222; background: #fff }
table { border-collapse: collapse } th, td { border: 1px solid #ccc; padding: .4em .7em; text-align: left; vertical-align: top }
thead th { position: sticky; top: 0; background: #f4f4f4 } ul { margin: .4em 0; padding-left: 1.2em } small { font-weight: normal; color: #666 }
.allowed { background: #d9f2dc } .conditional { background: #fff2cc } .denied { background: #f7f7f7; color: #777 }
</style></head><body>
<h1>Who can call what</h1>
";
