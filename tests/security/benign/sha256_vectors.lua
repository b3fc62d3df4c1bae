-- expect: ok value=["e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad", "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"]
-- Hashes the test vectors of FIPS 180-4.
agent = {}
function agent.resolve(args, config, context)
    return {
        crypto.sha256(""), crypto.sha256("abc"), crypto.sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
    }
end
