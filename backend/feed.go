package backend

import (
	"context"
	"sort"
	"sync"
	"time"

	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
)

// Event is a safe line of a timeline.
type Event struct {
	Seq    int64             `json:"seq"`
	Time   time.Time         `json:"time"`
	Kind   string            `json:"kind"`  // "worker.started"
	About  string            `json:"about"` // the allocation's or the Worker's id
	Fields map[string]string `json:"fields,omitempty"`
}

// eventFields are what of an event's fields is shown. Others may name what is the
// Runtime's own.
var eventFields = map[string]bool{"strategy": true, "status": true, "commit": true, "name": true, "snapshot": true, "before": true, "from": true}

// timeline calls yield for the events of an allocation and its Workers after the
// given number, oldest first; with follow until ctx ends.
func (c *call) timeline(ctx context.Context, id policy.AllocationID, after int64, follow bool, yield func(Event) bool) error {
	return c.rt().Events(ctx, runtime.EventsRequest{After: after, AllocationID: id, Follow: follow}, func(e runtime.Event) bool {
		v := Event{Seq: e.Seq, Time: e.Time, Kind: policy.Printable(e.Kind), About: e.Owner}
		for k, s := range e.Fields {
			if eventFields[k] {
				if v.Fields == nil {
					v.Fields = make(map[string]string)
				}
				v.Fields[k] = c.b.scrub(s)
			}
		}
		return yield(v)
	})
}

// Sample is what a Worker used at one moment.
type Sample struct {
	At time.Time `json:"at"`
	// CPUPercent is of one CPU since the sample before; MemoryBytes and Tasks now.
	CPUPercent  float64 `json:"cpu_percent"`
	MemoryBytes int64   `json:"memory_bytes"`
	Tasks       int     `json:"tasks"`
}

// Usage is a Worker's resource use over its time, as far as somebody looked.
type Usage struct {
	WorkerID string   `json:"worker_id"`
	Samples  []Sample `json:"samples"`
}

// usageBook holds samples of Workers that somebody looks at.
type usageBook struct {
	mu  sync.Mutex
	all map[policy.WorkerID]*usageOf
}

type usageOf struct {
	samples []Sample
	cpu     time.Duration // at the last sample
	wanted  time.Time     // when somebody last asked
	busy    bool
}

const (
	sampleEvery = time.Second
	maxSamples  = 900 // a quarter of an hour; then every second one goes
	unwatched   = 2 * time.Minute
	maxUsages   = 500
)

// want returns what there is and goes on sampling as long as somebody asks.
func (u *usageBook) want(b *Backend, rt runtime.Service, w policy.WorkerID, live bool) []Sample {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.all == nil {
		u.all = make(map[policy.WorkerID]*usageOf)
	}
	v := u.all[w]
	if v == nil {
		if !live {
			return nil
		}
		if len(u.all) >= maxUsages {
			u.forget()
		}
		v = &usageOf{}
		u.all[w] = v
	}
	v.wanted = time.Now()
	if live && !v.busy {
		v.busy = true
		b.behind.Go(func() { u.follow(b, rt, w, v) })
	}
	return append([]Sample(nil), v.samples...)
}

// forget drops the half that was asked for the longest ago.
func (u *usageBook) forget() {
	ids := make([]policy.WorkerID, 0, len(u.all))
	for id := range u.all {
		ids = append(ids, id)
	}
	sort.Slice(ids, func(i, j int) bool { return u.all[ids[i]].wanted.Before(u.all[ids[j]].wanted) })
	for _, id := range ids[:len(ids)/2] {
		delete(u.all, id)
	}
}

func (u *usageBook) follow(b *Backend, rt runtime.Service, w policy.WorkerID, v *usageOf) {
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	defer func() {
		u.mu.Lock()
		v.busy = false
		u.mu.Unlock()
	}()
	for {
		got, err := rt.WorkerUsage(b.running, w)
		if err != nil {
			return // it has ended, or this Runtime cannot tell
		}
		if !u.add(v, got) {
			return
		}
		select {
		case <-tick.C:
		case <-b.running.Done():
			return
		}
	}
}

func (u *usageBook) add(v *usageOf, got runtime.WorkerUsage) (wanted bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	s := Sample{At: got.MeasuredAt, MemoryBytes: got.MemoryBytes, Tasks: got.Tasks}
	if n := len(v.samples); n > 0 {
		if wall := got.MeasuredAt.Sub(v.samples[n-1].At); wall > 0 {
			s.CPUPercent = max(0, 100*float64(got.CPUTime-v.cpu)/float64(wall))
		}
	}
	v.cpu = got.CPUTime
	v.samples = append(v.samples, s)
	if len(v.samples) > maxSamples {
		half := v.samples[:0]
		for i := 0; i < len(v.samples); i += 2 {
			half = append(half, v.samples[i])
		}
		v.samples = half
	}
	return time.Since(v.wanted) < unwatched
}
