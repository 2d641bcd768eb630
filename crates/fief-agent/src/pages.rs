// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The metrics as they were written last, in each format. Clients that come while a page is kept have the same bytes; it is kept
//! for ten times as long as reading and writing it took.

use std::sync::Arc;

use fief_control::{Error, ErrorKind, Result};

use crate::metrics::{self, Format, Scrape};
use crate::reading::{Kept, SHORTEST};

#[derive(Debug)]
pub(crate) struct Pages {
    open: Kept<Vec<u8>>,
    text: Kept<Vec<u8>>,
}

impl Default for Pages {
    fn default() -> Self {
        Self { open: Kept::at_least(SHORTEST), text: Kept::at_least(SHORTEST) }
    }
}

impl Pages {
    /// What is kept, or what is made of a scrape that is read now.
    pub(crate) fn get(&self, format: Format, scrape: impl FnOnce() -> Result<Scrape>) -> Result<Arc<Vec<u8>>> {
        let kept = match format {
            Format::OpenMetrics => &self.open,
            Format::Text => &self.text,
        };
        kept.get(|| write(format, scrape()?))
    }
}

/// A page of a scrape.
pub(crate) fn write(format: Format, scrape: Scrape) -> Result<Vec<u8>> {
    let mut page = Vec::new();
    let written = metrics::write(scrape, format, &mut page);
    written.map_err(|error| Error::new(ErrorKind::Other, error.to_string()))?;
    page.shrink_to_fit();
    Ok(page)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn clients_at_once_have_one_page() {
        let (pages, reads) = (Pages::default(), AtomicU32::new(0));
        let costly = || {
            reads.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(SHORTEST * 10);
            Ok(Scrape::default())
        };
        std::thread::scope(|scope| {
            let all: Vec<_> = (0..50).map(|_| scope.spawn(|| pages.get(Format::Text, costly).expect("read"))).collect();
            let all: Vec<_> = all.into_iter().map(|one| one.join().expect("a page")).collect();
            assert!(all.iter().all(|page| Arc::ptr_eq(page, &all[0])));
        });
        assert_eq!(reads.load(Ordering::Relaxed), 1);
        let open = pages.get(Format::OpenMetrics, costly).expect("read");
        assert!(open.ends_with(b"# EOF\n"), "each format has its own");
        assert_eq!(reads.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn what_could_not_be_read_is_read_again() {
        let pages = Pages::default();
        assert!(pages.get(Format::Text, || Err(Error::new(ErrorKind::Other, "busy"))).is_err());
        assert!(pages.get(Format::Text, || Ok(Scrape::default())).is_ok());
    }
}
