//! How time, memory and the size of the snapshot grow with the number of paths and of processes.
//!
//!     cargo bench --bench growth -- [LARGEST] [PICTURE.svg]
//!
//! LARGEST is the largest number of paths, a million by default; of processes there are up to a tenth of it. Needs
//! cc, and below the temporary directory room for so many files.

#![allow(clippy::unwrap_used, reason = "an instrument")]

mod measure;

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use measure::{compile, run, shell};
use plotters::prelude::*;

/// What is done once for each path or process.
struct Series {
    name: &'static str,
    /// Run before each run, outside of the clock; `COUNT` stands for the number.
    reset: &'static str,
    script: &'static str,
    keep: &'static str,
    /// The smallest number, and by what part of LARGEST the numbers end.
    range: (usize, usize),
}

const SERIES: [Series; 3] = [
    Series {
        name: "files looked at, `all`",
        reset: "rm -rf d*; ./growth make COUNT",
        script: "exec ./growth look COUNT",
        keep: "all",
        range: (1000, 1),
    },
    Series {
        name: "files created, `undo`",
        reset: "rm -rf d*",
        script: "exec ./growth make COUNT",
        keep: "undo",
        range: (1000, 1),
    },
    Series {
        name: "processes, `undo`",
        reset: ":",
        script: "exec ./growth spawn COUNT",
        keep: "undo",
        range: (100, 10),
    },
];

/// One run.
struct Point {
    count: usize,
    bare: Duration,
    recorded: Duration,
    /// The peak memory in bytes.
    memory: u64,
    /// The size of the snapshot in bytes.
    snapshot: u64,
}

impl Point {
    fn per_item(&self, whole: u64) -> f64 {
        whole as f64 / self.count as f64
    }

    /// What the recording adds for each item, in microseconds.
    fn added(&self) -> f64 {
        self.recorded.saturating_sub(self.bare).as_secs_f64() * 1e6 / self.count as f64
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let largest = arguments.iter().find_map(|word| word.parse().ok()).unwrap_or(1_000_000);
    let picture = arguments.iter().find(|word| word.ends_with(".svg"));
    let base = tempfile::tempdir().unwrap();
    let source: PathBuf = [env!("CARGO_MANIFEST_DIR"), "benches", "growth.c"].iter().collect();
    compile(&source, &base.path().join("growth"));
    println!(
        "| | number | bare | recorded | added for each | peak memory | for each | snapshot | for each |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    let measured: Vec<(&Series, Vec<Point>)> =
        SERIES.iter().map(|series| (series, measure_all(series, largest, base.path()))).collect();
    if let Some(picture) = picture {
        draw(Path::new(picture), &measured).unwrap();
    }
}

fn measure_all(series: &Series, largest: usize, here: &Path) -> Vec<Point> {
    let (smallest, part) = series.range;
    let counts = std::iter::successors(Some(smallest), |count| Some(count * 10));
    let mut points = Vec::new();
    let mut least = None;
    for count in counts.take_while(|count| *count <= largest / part) {
        let point = measure_one(series, count, here);
        // What a recording of nothing takes is no part of any item.
        let least = *least.get_or_insert(point.memory);
        println!(
            "| {} | {count} | {:.3} s | {:.3} s | {:.1} µs | {} MiB | {:.0} B | {:.1} MB | {:.0} B |",
            series.name,
            point.bare.as_secs_f64(),
            point.recorded.as_secs_f64(),
            point.added(),
            point.memory >> 20,
            point.per_item(point.memory - least.min(point.memory)),
            point.snapshot as f64 / 1e6,
            point.per_item(point.snapshot),
        );
        points.push(point);
    }
    points
}

fn measure_one(series: &Series, count: usize, here: &Path) -> Point {
    let numbered = |text: &str| text.replace("COUNT", &count.to_string());
    let out = here.join("out");
    let directory = out.display().to_string();
    let recorder = env!("CARGO_BIN_EXE_agent-snapshot");
    let recorded = [recorder, "--quiet", "--snapshot-dir", &directory, "--keep", series.keep];
    let script = numbered(series.script);
    let timed = |wrapper: &[&str]| {
        shell(here, &numbered(series.reset));
        run(here, wrapper, &script, !wrapper.is_empty())
    };
    let (bare, _) = timed(&[]);
    let (time, peak) = timed(&recorded);
    let snapshot = fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
    fs::remove_dir_all(&out).unwrap();
    Point { count, bare, recorded: time, memory: peak << 10, snapshot }
}

/// Draws what each item adds to time, memory and snapshot, by their number, one chart beside the other.
fn draw(picture: &Path, measured: &[(&Series, Vec<Point>)]) -> Result<(), Box<dyn Error>> {
    type Quantity = (&'static str, fn(&Point) -> f64);
    let quantities: [Quantity; 3] = [
        ("time of the recording in s", |point| point.recorded.as_secs_f64()),
        ("peak memory in MiB", |point| point.memory as f64 / f64::from(1 << 20)),
        ("snapshot in MB", |point| point.snapshot as f64 / 1e6),
    ];
    let root = SVGBackend::new(picture, (1200, 400)).into_drawing_area();
    root.fill(&WHITE)?;
    for ((caption, quantity), area) in quantities.iter().zip(root.split_evenly((1, quantities.len()))) {
        let values = measured.iter().flat_map(|(_, points)| points).map(quantity);
        let (low, high) =
            values.fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)));
        let mut chart = ChartBuilder::on(&area)
            .caption(caption, ("sans-serif", 16))
            .margin(12)
            .x_label_area_size(30)
            .y_label_area_size(56)
            .build_cartesian_2d((100_f64..1e6).log_scale(), (low / 2.0..high * 2.0).log_scale())?;
        chart.configure_mesh().x_desc("number").disable_mesh().draw()?;
        for (index, (series, points)) in measured.iter().enumerate() {
            let color = Palette99::pick(index).to_rgba();
            let line = points.iter().map(|point| (point.count as f64, quantity(point)));
            chart
                .draw_series(LineSeries::new(line, color.stroke_width(2)).point_size(3))?
                .label(series.name.replace('`', ""))
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], color.stroke_width(2)));
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .border_style(BLACK)
            .draw()?;
    }
    Ok(root.present()?)
}
