-- expect: ok value=["b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7", "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843", "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"]
-- Signs the test vectors 1, 2 and 6 of RFC 4231.
agent = {}
function agent.resolve(args, config, context)
    return {
        crypto.hmac_sha256(("\x0b"):rep(20), "Hi There"),
        crypto.hmac_sha256("Jefe", "what do ya want for nothing?"),
        crypto.hmac_sha256(("\xaa"):rep(131), "Test Using Larger Than Block-Size Key - Hash Key First"),
    }
end
