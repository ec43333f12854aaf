// An endpoint that verifies and deduplicates:  WEBHOOK_SECRET=whsec_… go run receive.go
//
// Needs `go get github.com/standard-webhooks/standard-webhooks/libraries`.
package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

func main() {
	webhook, err := standardwebhooks.NewWebhook(os.Getenv("WEBHOOK_SECRET"))
	if err != nil {
		panic(err)
	}
	var seen sync.Map // in a real service: a table, written in the transaction that does the work
	http.HandleFunc("POST /", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
		if err != nil || webhook.Verify(body, r.Header) != nil {
			w.WriteHeader(http.StatusUnauthorized) // a 4xx is not tried again
			return
		}
		if _, known := seen.LoadOrStore(r.Header.Get("webhook-id"), true); !known {
			fmt.Println("received", r.Header.Get("x-event-type"), string(body))
		}
		w.WriteHeader(http.StatusOK) // 5xx, 429 or {"status": "RETRY"} would have it sent again
	})
	panic(http.ListenAndServe("127.0.0.1:8080", nil))
}
