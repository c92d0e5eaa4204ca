package backend

import (
	"sync"
	"time"
)

// limiter is a token bucket for each key. Buckets that are full again are
// forgotten, so a flood of addresses costs memory only while it lasts.
type limiter struct {
	rate  float64 // tokens a second
	burst float64
	now   func() time.Time

	mu      sync.Mutex
	buckets map[string]bucket
}

type bucket struct {
	tokens float64
	at     time.Time
}

const maxBuckets = 10000

func newLimiter(perSecond float64, burst int) *limiter {
	return &limiter{rate: perSecond, burst: float64(burst), now: time.Now, buckets: make(map[string]bucket)}
}

// take takes a token of key's, or says how long until there is one.
func (l *limiter) take(key string) (wait time.Duration, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	b, had := l.buckets[key]
	if !had {
		if len(l.buckets) >= maxBuckets {
			l.forget(now)
		}
		b = bucket{tokens: l.burst, at: now}
	}
	b.tokens = min(l.burst, b.tokens+now.Sub(b.at).Seconds()*l.rate)
	b.at = now
	if b.tokens >= 1 {
		b.tokens--
		l.buckets[key] = b
		return 0, true
	}
	l.buckets[key] = b
	return time.Duration((1 - b.tokens) / l.rate * float64(time.Second)), false
}

// forget drops buckets that have filled up, and all of them if none has.
func (l *limiter) forget(now time.Time) {
	for k, b := range l.buckets {
		if b.tokens+now.Sub(b.at).Seconds()*l.rate >= l.burst {
			delete(l.buckets, k)
		}
	}
	if len(l.buckets) >= maxBuckets {
		clear(l.buckets)
	}
}
