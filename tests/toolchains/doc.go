// Package toolchains does real work with real tools inside the sandbox, as root's
// Worker and as an ordinary user's, with nothing but the profile that the docs
// name for it (default, unless said otherwise) and without a network: who cannot
// build and test in it will turn it off.
package toolchains
