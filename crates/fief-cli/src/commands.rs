// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One file for each command.

pub mod agent;
pub mod apply;
pub mod ban;
pub mod bill;
pub mod bind;
pub mod check;
pub mod child;
pub mod completions;
pub mod down;
pub mod exec;
pub mod explain;
pub mod interface;
pub mod lab;
pub mod ls;
pub mod man;
pub mod manage;
pub mod mount;
pub mod pardon;
pub mod probe;
pub mod record;
pub mod replay;
pub mod run;
pub mod schema;
pub mod show;
pub mod status;
pub mod top;
pub mod umount;
pub mod unit;
pub mod usage;
