package s3

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/snapshot"
	"yoi.dev/yoi-runtime/snapshot/store"
)

// TestEndlessAnswers: a store may list for ever, in one answer or in many.
func TestEndlessAnswers(t *testing.T) {
	const head = `<?xml version="1.0" encoding="UTF-8"?><ListBucketResult><Name>bucket</Name><IsTruncated>true</IsTruncated>`
	page := func(n int) string {
		return head + fmt.Sprintf("<NextContinuationToken>%d</NextContinuationToken>", n) + "<Contents><Key>" + snapshot.ObjectName("sha256:"+strings.Repeat("ab", 32)) +
			"</Key><Size>1</Size></Contents>" + strings.Repeat(" ", 64<<10) + "</ListBucketResult>"
	}
	pages := 0
	for name, handler := range map[string]http.HandlerFunc{
		"one": func(w http.ResponseWriter, _ *http.Request) {
			_, err := w.Write([]byte(head + "<Prefix>"))
			for n := 0; err == nil && n < 4*maxAnswers; n += 64 << 10 {
				_, err = w.Write(bytes.Repeat([]byte("x"), 64<<10))
			}
		},
		"many": func(w http.ResponseWriter, _ *http.Request) {
			if pages++; pages > 4*maxAnswers/(64<<10) {
				w.WriteHeader(http.StatusNotFound)
				return
			}
			_, _ = w.Write([]byte(page(pages)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			srv := httptest.NewServer(handler)
			defer srv.Close()
			l := snapshot.Location{Scheme: "s3", Host: "bucket", Endpoint: srv.URL, Region: "us-east-1"}
			c, err := client(store.S3Request{Op: "list", Location: l, Stall: 10 * time.Second})
			if err != nil {
				t.Fatal(err)
			}
			err = storeError(bucket{c: c, name: "bucket"}.list(t.Context()), "")
			if d := policy.AsDiagnostic(err); err == nil || d.Code != policy.CodeSnapshotStoreFailed || !strings.Contains(d.Message, "larger") {
				t.Errorf("got %v", err)
			}
		})
	}
}
