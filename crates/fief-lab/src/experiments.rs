// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The experiments, one file each; and the form in which they hand over what came out.

pub mod accounting;
pub mod admission_cost;
pub mod cgi_sandbox;
pub mod classes;
pub mod cpu;
pub mod demo;
pub mod guest_servers;
pub mod header_control;
pub mod lrp;
pub mod media;
pub mod metrics;
pub mod overload;
pub mod parse;
pub mod primitives;
pub mod priority_clients;
pub mod queue;
pub mod rebind;
pub mod service;
pub mod switch_cost;
pub mod syn_flood;
pub mod user_vs_kernel;
pub mod whole;

use crate::figures::Figures;
use crate::plot::Plot;
use crate::table::Table;
use serde_json::Value;

/// What an experiment hands over: to read, to plot, to check.
#[derive(Debug, Default)]
pub struct Outcome {
    pub name: &'static str,
    /// What was done and how to read it, in a few sentences.
    pub about: String,
    pub tables: Vec<Table>,
    pub plots: Vec<Plot>,
    /// Every single measurement, one object each.
    pub measurements: Vec<Value>,
    pub figures: Figures,
}
