//! The latency curve as a picture: SVG text, without anything that runs or is fetched.
//! Never writes a name without escaping it.

use std::fmt::Write as _;
use std::time::Duration;

use crate::tally::Latency;

const SIZE: (f64, f64) = (720.0, 400.0);
/// Where the axes cross, and their lengths.
const ORIGIN: (f64, f64) = (70.0, 340.0);
const AXES: (f64, f64) = (620.0, 290.0);
const COLOURS: [&str; 2] = ["#1f77b4", "#ff7f0e"];
const POINTS: u32 = 400;

/// Latency by percentile, with a logarithmic axis of percentiles: 99 to 99.9 is as far as 90 to 99, as in HdrHistogram's own plots. Each
/// curve has a name.
#[must_use]
pub fn curve(title: &str, curves: &[(&str, &Latency)]) -> String {
    let nines = curves.iter().map(|(_, latency)| nines(latency)).fold(1.0, f64::max);
    let longest = curves.iter().filter_map(|(_, latency)| latency.max()).max().unwrap_or_default();
    let (unit, name) = unit(longest);
    let (step, steps) = steps(longest.as_secs_f64() / unit.as_secs_f64());
    let x = |nines_of: f64| ORIGIN.0 + AXES.0 * nines_of / nines;
    let y = |value: f64| ORIGIN.1 - AXES.1 * (value / (step * f64::from(steps))).min(1.0);
    let (width, height) = SIZE;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{}\" y=\"24\" font-size=\"14\">{}</text>\n",
        ORIGIN.0,
        escaped(title)
    );
    // Writing to a string cannot fail.
    for index in 0..=steps {
        let value = step * f64::from(index);
        let at = y(value);
        let _ = writeln!(
            svg,
            "<line x1=\"{}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{value} {name}</text>",
            ORIGIN.0,
            ORIGIN.0 + AXES.0,
            ORIGIN.0 - 6.0,
            at + 4.0
        );
    }
    let halves =
        std::iter::once((0.0, "0 %".to_owned())).chain(std::iter::once((0.5_f64.log10().abs(), "50 %".to_owned())));
    let decades = (1..=6_u32).map(|decade| {
        let digits = usize::try_from(decade.saturating_sub(2)).unwrap_or(0);
        (f64::from(decade), format!("{:.digits$} %", 100.0 - 100.0 / 10_f64.powf(f64::from(decade))))
    });
    for (place, percentile) in halves.chain(decades).filter(|(place, _)| *place <= nines) {
        let at = x(place);
        let _ = writeln!(
            svg,
            "<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{}\" y2=\"{}\" stroke=\"#ddd\"/>\
             <text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{percentile}</text>",
            ORIGIN.1 - AXES.1,
            ORIGIN.1,
            ORIGIN.1 + 18.0
        );
    }
    for (index, ((label, latency), colour)) in (0_u32..).zip(curves.iter().zip(COLOURS)) {
        svg.push_str("<polyline fill=\"none\" stroke-width=\"1.5\" stroke=\"");
        svg.push_str(colour);
        svg.push_str("\" points=\"");
        let end = self::nines(latency);
        for point in 0..=POINTS {
            let place = end * f64::from(point) / f64::from(POINTS);
            if let Some(value) = latency.at(1.0 - 10_f64.powf(-place)) {
                let _ = write!(svg, "{:.1},{:.1} ", x(place), y(value.as_secs_f64() / unit.as_secs_f64()));
            }
        }
        let legend = 44.0 + 16.0 * f64::from(index);
        let _ = writeln!(
            svg,
            "\"/>\n<text x=\"{}\" y=\"{legend}\" fill=\"{colour}\">{}</text>",
            ORIGIN.0 + 10.0,
            escaped(label)
        );
    }
    let _ = writeln!(
        svg,
        "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">percentile of calls</text>\n</svg>",
        ORIGIN.0 + AXES.0 / 2.0,
        ORIGIN.1 + 42.0
    );
    svg
}

/// How far a curve goes: to the percentile that a single one of its calls stands for.
fn nines(latency: &Latency) -> f64 {
    (latency.count().max(10) as f64).log10().min(6.0)
}

/// The unit for the longest time.
fn unit(longest: Duration) -> (Duration, &'static str) {
    match longest {
        longest if longest < Duration::from_millis(2) => (Duration::from_micros(1), "µs"),
        longest if longest < Duration::from_secs(2) => (Duration::from_millis(1), "ms"),
        _ => (Duration::from_secs(1), "s"),
    }
}

/// Round steps of an axis that reaches `most`: how large, and how many.
fn steps(most: f64) -> (f64, u32) {
    let most = most.max(1.0);
    let magnitude = 10_f64.powf((most / 5.0).log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|round| round * magnitude).find(|step| step * 5.0 >= most);
    let step = step.unwrap_or(most);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most 5")]
    let count = (most / step).ceil() as u32;
    (step, count.max(1))
}

/// Escapes text by XML 1.0 §2.4, and replaces characters that XML does not allow.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_point_lies_within_the_axes_whatever_was_measured() {
        let mut wide = Latency::new();
        (1..=5_000).for_each(|i| wide.record(Duration::from_micros(i * i)));
        let mut single = Latency::new();
        single.record(Duration::from_nanos(1));
        let empty = Latency::new();
        for curves in [vec![("a", &wide), ("b", &single)], vec![("only", &empty)], vec![("single", &single)]] {
            let svg = curve("t", &curves);
            let points = svg.split("points=\"").skip(1).filter_map(|rest| rest.split('"').next());
            for point in points.flat_map(str::split_whitespace) {
                let (x, y) = point.split_once(',').unwrap();
                let (x, y): (f64, f64) = (x.parse().unwrap(), y.parse().unwrap());
                assert!((ORIGIN.0..=ORIGIN.0 + AXES.0 + 0.1).contains(&x), "{x}");
                assert!((ORIGIN.1 - AXES.1 - 0.1..=ORIGIN.1).contains(&y), "{y}");
            }
        }
    }

    #[test]
    fn names_are_escaped() {
        let svg = curve("<script>&\"\u{1}", &[]);
        assert!(svg.contains("&lt;script&gt;&amp;&quot;\u{fffd}") && !svg.contains("<script"), "{svg}");
    }

    #[test]
    fn steps_are_round_and_few() {
        for (most, wanted) in
            [(0.0, (0.2, 5)), (1.0, (0.2, 5)), (7.0, (2.0, 4)), (180.0, (50.0, 4)), (1999.0, (500.0, 4))]
        {
            let (step, count) = steps(most);
            assert!((step - wanted.0).abs() < 1e-9 && count == wanted.1, "{most}: {step} {count}");
            assert!(step * f64::from(count) >= most);
        }
    }
}
