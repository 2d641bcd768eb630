// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Segments of a connection begin no other one (bpf/front/made): a program at the top of the cgroups, which every packet to a socket of the
//! machine passes while some listener counts or rules connections.

use std::fs::File;
use std::os::fd::AsFd;

use fief_bpf::{Context, Result, top};
use fief_policy::Policy;

use crate::{Fief, cgroup};

/// Whether a listener of the policy needs it. A server of multipath TCP, at which the kernel makes connections of its cookies, may begin to
/// listen at any time.
pub(crate) fn wanted(policy: &Policy) -> bool {
    policy.listeners.iter().any(|listener| listener.is_guarded() && !listener.forward && !policy.watches(listener))
}

impl Fief {
    pub(crate) fn keep_made(&self) -> Result<()> {
        let path = cgroup::mount_point()?;
        let folder = File::open(&path).context(|| format!("cannot open {}", path.display()))?;
        top::attach(self.pins(), folder.as_fd())
    }

    /// The same; what cannot be is said, and stops nothing.
    pub(crate) fn try_to_keep_made(&self) -> Option<String> {
        let error = self.keep_made().err()?;
        Some(format!(
            "a cookie of the kernel's that comes back in one batch with what ends its connection is not counted, and its bytes are not \
             ruled: {error}"
        ))
    }
}
