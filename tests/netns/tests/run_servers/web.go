// SPDX-License-Identifier: Apache-2.0 OR MIT
// A server of Go's own net/http, with multipath TCP as it comes. Usage: web ADDRESS FILE
// A line `CLIENT PID` in the file for each request.
package main

import (
	"fmt"
	"net"
	"net/http"
	"os"
)

func main() {
	file, err := os.OpenFile(os.Args[2], os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		panic(err)
	}
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		client, _, _ := net.SplitHostPort(r.RemoteAddr)
		fmt.Fprintln(file, client, os.Getpid())
		fmt.Fprint(w, "served")
	})
	panic(http.ListenAndServe(os.Args[1], nil))
}
