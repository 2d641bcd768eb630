// SPDX-License-Identifier: Apache-2.0 OR MIT
// A server of Go's own net/http, which listens with multipath TCP unless told otherwise. Usage: web ADDRESS
// A line for each connection and for each request that it sees.
package main

import (
	"fmt"
	"net"
	"net/http"
	"os"
)

func main() {
	server := http.Server{Addr: os.Args[1]}
	server.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			fmt.Println("connection")
		}
	}
	server.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Println("request", r.URL.Path)
		fmt.Fprint(w, "served "+r.URL.Path)
	})
	fmt.Fprintln(os.Stderr, server.ListenAndServe())
	os.Exit(1)
}
