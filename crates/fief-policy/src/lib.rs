// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The policy file: from TOML to a checked model, and from the model to the tables that the kernel side looks up.
//!
//! Everything here is pure: no file is opened, no kernel is asked. [`parse`] gives either a [`Policy`] that holds every
//! rule of `docs/policy.md`, or [`Diagnostics`] with *all* that is wrong, each with its place, what was expected and the
//! remedy. What depends on the machine (does the address exist, can this kernel do it) is found out at apply.
//!
//! ```
//! let policy = fief_policy::parse(
//!     r#"
//!     version = 1
//!
//!     [container."shop/gold"]
//!     cpu.priority = 200
//!     [container."shop/browse"]
//!
//!     [listener.web]
//!     address = "0.0.0.0:80"
//!     [[listener.web.client]]
//!     from = ["10.1.0.0/16"]
//!     container = "shop/gold"
//!     [[listener.web.client]]
//!     from = ["any"]
//!     container = "shop/browse"
//!     "#,
//!     "shop.toml",
//! )?;
//! let table = policy.listeners[0].table();
//! let class = table.lookup("10.1.2.3".parse().expect("an address")).expect("every address has a class");
//! assert_eq!(table.classes[usize::from(class.class)].container, "shop/gold");
//! # Ok::<(), fief_policy::Diagnostics>(())
//! ```

mod address;
mod bloom;
mod class_queue;
mod containers;
mod covered;
mod cpu;
mod diagnostic;
mod evaluate;
mod fields;
mod forward;
mod heads;
mod listeners;
mod mistyped;
mod model;
mod name;
mod nearest;
mod normal;
mod overload;
mod parse;
mod pattern;
mod patterns;
mod prefix;
mod quantity;
mod queue;
mod reach;
mod reader;
mod render;
mod request;
mod request_table;
mod requests;
mod rules;
mod schema;
mod shapes;
mod shares;
mod sweep;
mod syn_rates;
mod table;
mod unread;
mod vocabulary;

pub use cpu::{Cpu, CpuPolicy, ORDERS_MOST, Order};
pub use diagnostic::{Diagnostic, Diagnostics, Kind, Related};
pub use evaluate::{Met, Reason, RequestVerdict, Verdict};
pub use fields::{Body, Fields, Unread};
pub use model::{
    AcceptOrder, ClassQueue, Client, Container, From, Front, Handshake, Isolate, Latency, Level, Listener, Lrp, Mode,
    Network, Overload, Per, Policy, Queue, Schedule, Serve, SynRate, Thresholds, Unguarded, Until,
};
pub use name::is_within;
pub use nearest::{nearest, nearest_path};
pub use parse::parse;
pub use patterns::{Comparison, Part, PatternHash, ShapeCondition};
pub use prefix::{has_mapped, single as parse_prefix};
pub use quantity::as_percent;
pub use queue::SERVER_SPEAKS_FIRST;
pub use request::{Condition, Field, Pattern, Refusal, Request, RequestRate};
pub use request_table::{Found, PatternEntry, RequestTable, Shape};
pub use schema::schema;
pub use table::{ClassEntry, ClassSpec, ClassTable};
