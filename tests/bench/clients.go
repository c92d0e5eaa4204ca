package main

import (
	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// manyClients has 200 clients list and 20 create and clean up, all at once, in front of
// a real Runtime. It fails if one is not answered, or if a daemon does not give back what
// it opened; how far the slow answers are from the usual ones is told, without a target.
func manyClients(r *room) {
	p := rig.NewPlace(r, "disk", rig.Ordinary)
	d := rig.NewDaemons(r, p, 0)
	d.Start(r)
	repo := p.Give(r, testenv.RepoSmall(r))
	b := rig.StartBackend(r, d, `
[runtimes.local]
socket = "@SOCKET@"
[workspaces.bench]
runtime = "local"
[workspaces.bench.repositories.app]
source = "`+repo.Dir+`"
[limits]
requests_per_second = 100000
burst = 100000
`)
	r.Cleanup(func() { b.Stop(r) })
	load := rig.Load{Workspace: "bench", Repository: "app", Token: b.Token(r, "bench", "operator"), Listing: 1, Creating: 1, Lists: 1, Creates: 1}
	b.Load(r, load) // what a first request opens for good
	before, runtimed := b.Descriptors(r), d.Runtimed.Descriptors(r)
	load.Listing, load.Creating, load.Lists, load.Creates = 200, 20, r.runs(30), r.runs(6)
	lists, creates := b.Load(r, load)
	rig.Eventually(r, "yoi-backend and yoi-runtimed closing what they opened", func() bool {
		return b.Descriptors(r) <= before+rig.KeptConnections && d.Runtimed.Descriptors(r) <= runtimed+rig.KeptConnections
	})
	r.fact("list beside 219 clients, p99 over p50", lists.Spread(), "")
	r.fact("the same, p50", milliseconds(lists.Of(0.5)), "ms")
	r.fact("create beside 219 clients, p99 over p50", creates.Spread(), "")
	r.fact("the same, p50", milliseconds(creates.Of(0.5)), "ms")
}
