package runtime

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"

	"yoi.dev/yoi-runtime/policy"
)

func digest(b []byte) string {
	h := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(h[:])
}

// idempotent runs do once per key: a repeated request gets the first one's
// answer, another request under the same key is a conflict. A failed attempt
// frees the key. Without a key do just runs.
func idempotent[T any](ctx context.Context, r *Runtime, kind, key string, req any, do func() (T, error)) (T, error) {
	var zero T
	if key == "" {
		return do()
	}
	if len(key) > 256 {
		return zero, policy.Errorf(policy.CodeBadRequest, "runtime.idempotency", "the idempotency key is longer than 256 bytes")
	}
	b, err := json.Marshal(req)
	if err != nil {
		return zero, policy.AsDiagnostic(err)
	}
	key = kind + ":" + key
	k, first, err := r.registry.ClaimKey(ctx, key, digest(b))
	if err != nil {
		return zero, err
	}
	if !first {
		var v T
		if err := json.Unmarshal(k.Response, &v); err != nil {
			return zero, policy.AsDiagnostic(err)
		}
		return v, nil
	}
	v, err := do()
	after := context.WithoutCancel(ctx)
	if err == nil {
		if b, err = json.Marshal(v); err == nil {
			err = r.registry.AnswerKey(after, k, b)
		}
	}
	if err != nil {
		if ferr := r.registry.ForgetKey(after, k); ferr != nil {
			r.log.Warn("idempotency key not freed", "error", ferr)
		}
		return zero, err
	}
	return v, nil
}
