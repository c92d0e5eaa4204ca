package main

import (
	"encoding/binary"
	"encoding/json"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"go.etcd.io/bbolt"

	"yoi.dev/yoi-runtime/ledger"
	"yoi.dev/yoi-runtime/policy"
)

// ledgerAgainstBbolt writes the same records to both, each durable when its
// call returns.
func ledgerAgainstBbolt(r *room) {
	fs := r.fs("ext4", 1024)
	own, closeLedger := ledgerWriter(r, fs)
	peer, closeBolt := boltWriter(r, fs)
	defer closeBolt()
	defer closeLedger()
	a, b := r.turns(r.runs(900),
		func() time.Duration { return timed(own) },
		func() time.Duration { return timed(peer) })
	r.times("one ledger record, fsynced, one writer", "bbolt Update, same bytes", 0.7, a, b)

	const writers = 32
	rate := func(f func(), each int) float64 {
		return float64(writers*each) / timed(func() { r.atOnce(writers, each, func(int) { f() }) }).Seconds()
	}
	var many, few []float64
	for i := range r.runs(9) + 1 {
		// Numbers that take about as long on each side.
		x, y := rate(own, 400), rate(peer, 20)
		if i > 0 {
			many, few = append(many, x), append(few, y)
		}
	}
	r.rates("ledger records, 32 writers", "bbolt Update, same bytes", 15, many, few)
}

// resource is a record of the size that a workspace's has.
func resource() ledger.Resource {
	id := policy.NewAllocationID()
	return ledger.Resource{ID: ledger.NewResourceID(), Kind: ledger.KindDirectory, Owner: string(id), Path: "execution-workspaces/" + string(id)}
}

func ledgerWriter(r *room, fs string) (write, done func()) {
	path := filepath.Join(fs, "ledger")
	r.must(os.Mkdir(path, 0o700))
	dir, err := ledger.OpenDir(path, true)
	r.must(err)
	l, err := ledger.Open(r.ctx, ledger.Options{Dir: dir, Role: ledger.RoleHelper})
	r.must(err)
	r.must(dir.Close())
	write = func() {
		res := resource()
		r.must(l.Intend(r.ctx, res))
		// As in life most resources are gone soon: the ledger carries what is held.
		r.must(l.Release(res.ID))
	}
	return write, func() { r.must(l.Close()) }
}

func boltWriter(r *room, fs string) (write, done func()) {
	db, err := bbolt.Open(filepath.Join(fs, "bolt.db"), 0o600, nil)
	r.must(err)
	bucket := []byte("ledger")
	r.must(db.Update(func(tx *bbolt.Tx) error {
		_, err := tx.CreateBucketIfNotExists(bucket)
		return err
	}))
	var seq atomic.Uint64
	write = func() {
		value, err := json.Marshal(resource())
		r.must(err)
		key := binary.BigEndian.AppendUint64(nil, seq.Add(1))
		r.must(db.Update(func(tx *bbolt.Tx) error { return tx.Bucket(bucket).Put(key, value) }))
	}
	return write, func() { r.must(db.Close()) }
}
