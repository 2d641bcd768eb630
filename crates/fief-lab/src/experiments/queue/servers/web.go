// SPDX-License-Identifier: Apache-2.0 OR MIT
// A server of Go's own net/http, with multipath TCP as it comes. Usage: web ADDRESS ROUNDS [WAIT]
// A request costs so many rounds of SHA-256 over 1 kB, one for /long four times as many;
// before, it waits for so long without computing. From SIGUSR1 to SIGUSR2 a request costs twice as much.
package main

import (
	"crypto/sha256"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

func main() {
	rounds, err := strconv.Atoi(os.Args[2])
	if err != nil {
		panic(err)
	}
	wait := time.Duration(0)
	if len(os.Args) > 3 {
		if wait, err = time.ParseDuration(os.Args[3]); err != nil {
			panic(err)
		}
	}
	var times atomic.Int64
	times.Store(1)
	told := make(chan os.Signal, 2)
	signal.Notify(told, syscall.SIGUSR1, syscall.SIGUSR2)
	go func() {
		for which := range told {
			if which == syscall.SIGUSR1 {
				times.Store(2)
			} else {
				times.Store(1)
			}
		}
	}()
	block := make([]byte, 1024)
	page := make([]byte, 1024)
	for i := range page {
		page[i] = 'x'
	}
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(wait)
		sum, cost := byte(0), rounds*int(times.Load())
		if strings.HasPrefix(r.URL.Path, "/long") {
			cost *= 4
		}
		for range cost {
			digest := sha256.Sum256(block)
			sum |= digest[0]
		}
		if sum == 0 && rounds > 0 {
			panic("nothing was computed")
		}
		w.Header().Set("Content-Length", strconv.Itoa(len(page)))
		w.Write(page)
	})
	panic(http.ListenAndServe(os.Args[1], nil))
}
