package main

import (
	"os"
	"time"

	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// sizes are numbers without a target: what an installation costs.
func sizes(r *room) {
	for _, name := range []string{"yoi-helper", "yoi", "yoi-runtimed"} {
		st, err := os.Stat(rig.Program(r, name))
		r.must(err)
		r.fact(name+", size", float64(st.Size())/(1<<20), "MiB")
	}
	s := r.station(r.fs("ext4", 128))
	r.fact("yoi-helper, resident when idle", residentMiB(r, s.pid), "MiB")
	start, floor := r.turns(r.runs(60),
		func() time.Duration { return timed(func() { r.do(rig.Program(r, "yoi"), "--version") }) },
		func() time.Duration { return timed(func() { r.do("/bin/true") }) })
	r.fact("yoi --version, whole process", milliseconds(median(start)), "ms")
	r.fact("/bin/true, whole process", milliseconds(median(floor)), "ms")
}
