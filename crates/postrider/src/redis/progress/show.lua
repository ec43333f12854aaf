-- Shows one version of a job whose authority is a store: the whole hash, never a part of it.
--
-- KEYS  the job (a hash)
-- ARGV  the version; the time to live in ms; when the job was made; the fields and their values
--
-- Answers written, newer (a later version is there, or the job itself, which the store has only archived), redis (Redis itself is the
-- authority on another job of this id), or what the key holds instead of a hash. A hash of a job that was made at another time
-- is what is left of an earlier one, in a store that is no more: its version says nothing.
local kind = redis.call('TYPE', KEYS[1])['ok']
if kind ~= 'none' and kind ~= 'hash' then
  return kind
end
local found = redis.call('HMGET', KEYS[1], 'authority', 'version', 'created_at')
local same = found[3] == ARGV[3]
if found[1] == 'redis' then
  return same and 'newer' or 'redis'
end
local version = found[2] and tonumber(found[2])
if same and version and version > tonumber(ARGV[1]) then
  return 'newer'
end
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], unpack(ARGV, 4))
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 'written'
