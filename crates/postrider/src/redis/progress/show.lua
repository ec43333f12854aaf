-- Shows one version of a job whose authority is a store: the whole hash, never a part of it.
--
-- KEYS  the job (a hash)
-- ARGV  the version; the time to live in ms; the fields and their values
--
-- Answers written, newer (this version or a later one is there), redis (Redis itself is the authority on this job),
-- or what the key holds instead of a hash.
local kind = redis.call('TYPE', KEYS[1])['ok']
if kind ~= 'none' and kind ~= 'hash' then
  return kind
end
local found = redis.call('HMGET', KEYS[1], 'authority', 'version')
if found[1] == 'redis' then
  return 'redis'
end
local version = found[2] and tonumber(found[2])
if version and version > tonumber(ARGV[1]) then
  return 'newer'
end
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], unpack(ARGV, 3))
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 'written'
