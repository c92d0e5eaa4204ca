package main

import (
	"cmp"
	"slices"
	"time"
)

// side measures once and returns what counts; what it prepares and clears away
// is outside of the time.
type side func() time.Duration

// turns lets two sides measure in turn, n times each, after one turn that does
// not count: it fills caches and makes what is made once.
func (r *room) turns(n int, own, peer side) (a, b []time.Duration) {
	for i := range n + 1 {
		r.goOn()
		x, y := own(), peer()
		if i > 0 {
			a, b = append(a, x), append(b, y)
		}
	}
	return a, b
}

// goOn ends the section after an interruption.
func (r *room) goOn() {
	if err := r.ctx.Err(); err != nil {
		r.Fatal(err)
	}
}

func timed(f func()) time.Duration {
	start := time.Now()
	f()
	return time.Since(start)
}

// median is the upper one of an even number.
func median[T cmp.Ordered](vs []T) T {
	s := slices.Sorted(slices.Values(vs))
	return s[len(s)/2]
}
