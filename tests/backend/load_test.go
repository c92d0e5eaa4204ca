package backend

import (
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// TestManyClientsAtOnce: 200 that list while 20 create. None is refused or failed, and
// afterwards both daemons have what they had before. make bench has the longer form.
func TestManyClientsAtOnce(t *testing.T) {
	w := start(t, "")
	token := w.b.Token(t, "demo", "operator")
	load := rig.Load{Workspace: "demo", Repository: "app", Token: token, Listing: 1, Creating: 1, Lists: 1, Creates: 1}
	daemons := map[string]func() *rig.Daemon{"yoi-backend": func() *rig.Daemon { return w.b.Daemon }, "yoi-runtimed": func() *rig.Daemon { return w.d.Runtimed }, "yoi-helper": func() *rig.Daemon { return w.d.Helper }}
	// What a first request opens for good is no leak.
	w.b.Load(t, load)
	quiet := map[string]int{}
	for _, name := range []string{"yoi-backend", "yoi-runtimed"} {
		quiet[name] = len(daemons[name]().Goroutines(t))
	}
	w.d.StartRuntimed(t)
	w.b.Start(t)
	w.b.Load(t, load)
	before := map[string]int{}
	for name, d := range daemons {
		before[name] = d().Descriptors(t)
	}
	load.Listing, load.Creating, load.Lists, load.Creates = 200, 20, 3, 1
	lists, creates := w.b.Load(t, load)
	if len(lists) != 600 || len(creates) != 20 {
		t.Errorf("%d lists and %d creations were answered", len(lists), len(creates))
	}
	t.Logf("p99 over p50: list %.1f, create %.1f", lists.Spread(), creates.Spread())
	for name, d := range daemons {
		// Of its clients' connections none is left; to the Runtime it keeps some for a minute.
		rig.Eventually(t, name+" closing what it opened", func() bool { return d().Descriptors(t) <= before[name]+rig.KeptConnections })
	}
	for name, n := range quiet {
		if got := daemons[name]().Goroutines(t); len(got) > n {
			t.Errorf("%s has %d goroutines, %d before\n%s", name, len(got), n, strings.Join(got, "\n\n"))
		}
	}
	w.d.StartRuntimed(t) // to be stopped
	w.b.Start(t)
}
