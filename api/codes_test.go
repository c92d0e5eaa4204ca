package api

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/internal/servicetest"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
)

// TestEveryCodeGoesThroughTheSocket: a caller switches on codes, so each must
// come out as it went in, under the catalog's status and title.
func TestEveryCodeGoesThroughTheSocket(t *testing.T) {
	svc := new(servicetest.Service)
	socket, _ := serve(t, Options{Service: svc})
	client := NewClient(socket)
	for _, i := range policy.Catalog() {
		svc.Err = policy.Errorf(i.Code, "test.op", "it is refused").Because(errors.New("open /srv/secret: no"))
		_, err := client.Info(t.Context())
		d := policy.AsDiagnostic(err)
		if !errors.Is(err, i.Code) || d.Message != "it is refused" || d.Hint != i.Hint || d.Op != "test.op" {
			t.Errorf("%s came back as %+v", i.Code, d)
		}
		p := ProblemOf(svc.Err)
		want := i.Status
		if want == http.StatusOK {
			want = http.StatusInternalServerError
		}
		if p.Status != want || p.Title != i.Title || p.Type != "urn:yoi:diagnostic:"+string(i.Code) {
			t.Errorf("%s is the problem %+v", i.Code, p)
		}
	}
}

// The header is the field: a caller may give either, or both alike.
func TestIdempotencyKeyOfTheHeader(t *testing.T) {
	bodies := map[string]string{
		"/v1/workers":              `{"allocation_id":"ws-1","command":["a"]}`,
		"/v1/execution-workspaces": `{"repositories":[{"repository_id":"a","selector":{}}]}`,
	}
	key := func(c servicetest.Call) string {
		switch r := c.Arg.(type) {
		case runtime.SpawnWorkerRequest:
			return r.IdempotencyKey
		case runtime.CreateWorkspaceRequest:
			return r.IdempotencyKey
		}
		return "not asked"
	}
	for path, body := range bodies {
		both := strings.TrimSuffix(body, "}") + `,"idempotency_key":"k1"}`
		for _, try := range []struct{ header, body, want string }{
			{"", body, ""}, {"k1", body, "k1"}, {"", both, "k1"}, {"k1", both, "k1"},
		} {
			svc := new(servicetest.Service)
			req := httptest.NewRequest("POST", path, strings.NewReader(try.body))
			req.Header.Set("Content-Type", jsonType)
			if try.header != "" {
				req.Header.Set("Idempotency-Key", try.header)
			}
			w := httptest.NewRecorder()
			NewServer(Options{Service: svc}).ServeHTTP(w, req)
			if got := key(svc.Last()); w.Code >= 300 || got != try.want {
				t.Errorf("%s with %q: status %d, key %q", path, try.header, w.Code, got)
			}
		}
	}
}
